"""Mutation testing of the specification: does each invariant notice what it is there to notice?"""

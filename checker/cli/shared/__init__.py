"""What the commands share: options, reports, progress."""

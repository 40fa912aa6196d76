"""Copy engines: blocks between GPU memory and registered host memory, by DMA or by kernels."""

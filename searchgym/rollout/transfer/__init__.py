"""How new weights reach the engines that sample: through a folder, or through a process group over the network."""

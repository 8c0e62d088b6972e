"""Ways of new weights from a trainer to the engines that sample: a folder, or a process group over the network."""

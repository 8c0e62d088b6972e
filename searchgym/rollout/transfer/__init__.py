"""Transfer of new weights to sampling engines, through a folder or a process group over the network."""

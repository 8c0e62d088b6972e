"""What the commands that train show: the steps of a run, and the plan of its memory."""

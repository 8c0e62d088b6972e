"""What a training computes, a second time from its definitions; nothing here is shared with the trainer."""

"""Where the attention of an answer lies: the segments of the conversation, and what is certain of each."""

"""Lists for people who look around: messages page by page, how many when, topics, groups, and tables of a lake."""

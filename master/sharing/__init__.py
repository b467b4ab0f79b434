"""What sharing does to the tasks: whether they pull against each other, what each gains or loses, and what to do about it."""

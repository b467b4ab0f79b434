"""One stream: tasks whose samples come through queues and train one encoder and their heads in a parameter store."""

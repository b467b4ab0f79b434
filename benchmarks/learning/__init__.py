"""Does a task with few samples learn from the queues of others? `python -m benchmarks.learning`; the page is docs/learning.md.

python -m benchmarks.learning run       carry out what has no result yet; stopped or killed, it goes on another day
python -m benchmarks.learning report    write the page's tables and the picture from what there is
"""

"""The value study: does one shared encoder help tasks whose samples stay apart? `python -m benchmarks.value --help`.

study       what is compared: tasks, variants, cells, and every run as a frozen value with a key of its own
rates       learning rates of each variant, searched for on the validation rows
data        which rows each child gets
bench       a master without processes, and real children, in one folder
variants    one run: alone, shared or pooled
answers     what a trained encoder says, row by row
worker      carries out runs, a line of JSON each
results     the file of finished runs
drive       worker processes, a budget of seconds, progress
intervals   paired bootstrap over seeds and test rows
report      docs/value.md
plot        the picture
"""

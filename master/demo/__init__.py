"""`trunkline demo`: a master and five children as processes on this machine, on real data, and what was gained, measured.

samples      which rows each child gets
processes    the programs that are started, and surely ended
baselines    the same children alone, and everything pooled in one place
run          the flow from nothing to figures
figures      the figures as values
page         the figures as one HTML file
"""

"""The benchmark (`make bench`): the real processes on a real, durable PostgreSQL, against the budgets in figures.py.

    __main__    the order of the parts, the table, the exit status
    stage       a temporary place: PostgreSQL, the processes, the demo organization; cleaned up whatever happens
    load        the load generator, a process of its own; its ceiling is measured against `ceiling`
    pgbench     what the same PostgreSQL does without us, in the same run
    accept way backlog growth start     one part of the measurement each
    overhead counted                    the cost of metrics and logs, counted and timed in the processes themselves
    figures machine profile             budgets and tables, the machine, where the time goes
    statement_costs                     what each statement costs PostgreSQL; run by itself, like `webhooks`

The rule nobody may break: a figure is shown next to the limit measured in the same run, and an error (an answer that is
not 202, a message that did not come back) ends the run instead of making it look faster.
"""

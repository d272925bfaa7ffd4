"""What `make bench` measures: the real processes on a real, durable PostgreSQL, against the budgets in figures.py.

    __main__    the order of things, the table, the exit status
    stage       a temporary place: PostgreSQL, the processes, the demo organization; cleaned up whatever happens
    load        the load generator, a process of its own; its ceiling is measured against `ceiling`
    pgbench     what the same PostgreSQL does without us, in the same run
    accept way backlog growth start     one part of the measurement each
    overhead counted                    what metrics and logs cost, counted and timed in the processes themselves
    figures machine profile             budgets and tables, the machine, where the time goes
    statement_costs                     what each statement costs PostgreSQL; run by itself, like `webhooks`

The rule nobody may break: a figure stands beside the limit measured in the same run, and what went wrong (an answer
that is not 202, a message that did not come back) ends the run instead of making it look faster.
"""

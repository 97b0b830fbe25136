"""Proves a configuration in virtual time: the gate's own arithmetic against every way in which providers count.

    asked traffic trace    what is asked for, by whom and when
    arithmetic gate        what the pool decides: the Lua texts themselves, and the rules around them
    provider               the judge, and an independent count of what it let through
    simulation figures     the order of events, and what is counted meanwhile
    modes proof            which enforcement a preset must withstand, and the runs that show it
    picture                a run as SVG

Nothing here talks to Redis or waits for real time. Import it lazily: it loads a Lua interpreter.
"""

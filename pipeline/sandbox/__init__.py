"""A simulated OpenAI provider and Ollama server, and the judge of whether the engine ever got a 429.

A promise about rate limits is worth as much as the one who counts. So the sandbox is a process of its own with its
own arithmetic and its own ledger, and it imports nothing from the rest of the project: a fault in the engine's
limits can't hide behind the same fault here. Nothing in this package may import `pipeline.*` outside it.

    modes limits foreign meter ledger account      pure: what is admitted, to whom, and how it is counted
    headers latency tokens answers faults          pure: what is said, drawn, ordered
    state calls                                    everything a reset forgets
    openai_wire ollama_wire control                HTTP
    arguments server process                       starting it: from a command line, as a server, from Python
"""

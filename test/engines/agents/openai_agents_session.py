"""An agent that keeps its conversation in a file, and goes on from it with --resume: `python openai_agents_session.py chat|responses [--resume]`."""

import asyncio
import os
import random
import sys

from agents import Agent, Runner, SQLiteSession, function_tool, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)
set_default_openai_api("chat_completions" if sys.argv[1] == "chat" else "responses")


@function_tool
def note(word: str) -> str:
    """Notes a word."""
    line = f"{word} {random.SystemRandom().random()}"
    with open("log", "a") as log:
        log.write(line + "\n")
    return line


agent = Agent(name="writer", instructions="You note words.", model="policy", tools=[note])
session = SQLiteSession("rollout", "conversation.db")
# Nothing new is asked: the stored conversation ends with what the tools said.
question = [] if "--resume" in sys.argv else "Note some words."
print(asyncio.run(Runner.run(agent, question, session=session, max_turns=20)).final_output)

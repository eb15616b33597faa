"""An agent with helpers: it asks two at once, each of which uses a tool. `python openai_agents_program.py chat|responses whole|streamed`."""

import asyncio
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

API, HOW = sys.argv[1:]
set_tracing_disabled(True)
set_default_openai_api("chat_completions" if API == "chat" else "responses")


@function_tool
def paint(color: str) -> str:
    """Paints a wall."""
    return f"The wall is {color}."


helper = Agent(name="helper", instructions="You are a helper.", model="policy", tools=[paint])
manager = Agent(
    name="manager",
    instructions="You are the manager.",
    model="policy",
    tools=[helper.as_tool(tool_name="ask_helper", tool_description="Asks a helper.")],
)


async def main() -> None:
    if HOW == "whole":
        result = await Runner.run(manager, "Paint two walls.")
    else:
        result = Runner.run_streamed(manager, "Paint two walls.")
        async for _ in result.stream_events():
            pass
    print(result.final_output)


asyncio.run(main())

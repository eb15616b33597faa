/** A program that keeps its own record in its sandbox, and can go on from it. */
import type { AgentProgram } from '../../../core/settings/programs.ts';
import { programHere } from './program-here.ts';

export const turns = 5;

/**
 * It keeps its conversation in its folder. Each step writes a random line, which is its next message: a program that
 * started again would send others.
 */
export const agentOf = (count: number): string => `
import random
if "--resume" in sys.argv:
    state = json.load(open("state.json"))
    state["resumed"] += 1
else:
    assert not os.path.exists("state.json"), "a fresh sandbox"
    state = {"messages": [{"role": "user", "content": "Go."}], "resumed": 0}
while len(state["messages"]) < 2 * ${count} - 1:
    said = call({"model": "policy", "messages": state["messages"]})
    line = said + " " + str(random.SystemRandom().random())[2:8] + "x"
    open("work.txt", "a").write(line + "\\n")
    state["messages"] += [{"role": "assistant", "content": said}, {"role": "user", "content": line}]
    json.dump(state, open("state.new", "w"))
    os.replace("state.new", "state.json")
call({"model": "policy", "messages": state["messages"]})
heard = [one["content"] for one in state["messages"][2::2]]
assert open("work.txt").read().splitlines() == heard, "its folder and its conversation are those of one moment"
open("answer", "w").write("2")
open("resumed", "w").write(str(state["resumed"]))
print(json.dumps(heard))
`;
export const agent = agentOf(turns);

export function programThatResumes(
  every = 1,
  more: Partial<Parameters<typeof programHere>[0]> = {},
  delayS = 0,
): Promise<AgentProgram> {
  const resume = { command: ['python3', 'agent.py', '--resume'], every, delayS };
  return programHere({ agent, isDeterministic: false, resume, score: { collect: ['resumed'] }, ...more });
}

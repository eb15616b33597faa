/** A small agent in a folder of its own, with settings that a test changes. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { readCopiedFiles } from '../../../backends/environments/agent/copied-files.ts';
import type { AgentProgram, ProgramSandbox, ProgramScore } from '../../../core/settings/programs.ts';

interface Given extends Partial<Omit<AgentProgram, 'sandbox' | 'score' | 'tasks'>> {
  /** Python of the agent; `ask(text)` calls the policy and gives its answer. */
  readonly agent: string;
  readonly tasks?: readonly object[];
  readonly sandbox?: Partial<ProgramSandbox>;
  readonly score?: Partial<ProgramScore>;
  /** Further files, below the folder of the agent. */
  readonly files?: Readonly<Record<string, string>>;
}

const asking = `
import json, os, sys, urllib.request, urllib.error
def call(body):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
def ask(text, before=()):
    return call({"model": "policy", "messages": [*before, {"role": "user", "content": text}]})
def task():
    return json.load(open(os.environ["RATCHET_TASK"]))
`;

/** Scores 1 if the file `answer` has the task's answer. */
const scoring = `
import json, os
task = json.load(open(os.environ["RATCHET_TASK"]))
print("a line before")
print(json.dumps({"reward": float(open("answer").read() == task["answer"]), "metrics": {"exit": -1 if task["exit_code"] is None else task["exit_code"]}}))
`;

export async function programHere({
  agent,
  tasks,
  sandbox = {},
  score = {},
  files = {},
  ...more
}: Given): Promise<AgentProgram> {
  // prettier-ignore
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-agent-'));
  after(() => rm(folder, { recursive: true, force: true }));
  const at = (name: string): string => path.join(folder, name);
  await writeFile(at('agent.py'), asking + agent);
  await writeFile(at('score.py'), scoring);
  for (const [name, text] of Object.entries(files)) await writeFile(at(name), text);
  const rows = tasks ?? [{ prompt: 'What is 1 + 1?', answer: '2' }];
  await writeFile(at('tasks.jsonl'), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  const copied = (name: string) => ({ path: at(name), sha256: readCopiedFiles(at(name)).sha256 });
  return {
    command: ['python3', 'agent.py'],
    tasks: { path: at('tasks.jsonl'), sha256: null },
    evalTasks: null,
    evalShare: 0,
    isDeterministic: true,
    turnTimeoutS: null,
    toolTimeoutS: null,
    exitCodes: [0],
    resume: null,
    models: [],
    ...more,
    sandbox: {
      pool: { provider: { kind: 'namespace', python: 'python3' }, quota: null, warm: 0, costPerHour: 0 },
      image: null,
      files: copied('agent.py'),
      setup: null,
      setupTimeoutS: 60,
      network: 'route',
      snapshot: true,
      memoryMb: 512,
      diskMb: 64,
      cpus: null,
      ...sandbox,
    },
    score: {
      command: ['python3', 'score.py'],
      reads: 'output',
      function: null,
      judge: null,
      files: copied('score.py'),
      collect: [],
      timeoutS: 60,
      ...score,
    },
  };
}

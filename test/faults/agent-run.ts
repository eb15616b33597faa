/** The run of cells with agents: a program of a few calls and an effect, one at a time in a sandbox of namespaces, and a model that answers by hash. */
import { copyFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { canSandbox, missingSandbox } from '../environments/sandbox-here.ts';
import { fakeRun, type RunOptions } from './fake-run.ts';
import type { StageKind, Surroundings } from './stage-kinds.ts';
import { StageUnavailable } from './stage-unavailable.ts';

const here = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** The program's file in a sandbox: a word of its command line. */
export const agentFile = 'agent.py';
/** Rollouts of a step are 8, each of three calls. */
const tasks = 4;

export const agentsInSandboxes: StageKind = { run: agentRun, engine: 'agents', surround: putAgent };

async function putAgent(folder: string): Promise<Surroundings> {
  if (!(await canSandbox())) throw new StageUnavailable(missingSandbox);
  await copyFile(here('counting-agent.py'), path.join(folder, agentFile));
  const rows = Array.from({ length: tasks }, (_, i) => JSON.stringify({ prompt: `go ${i}` }));
  await writeFile(path.join(folder, 'tasks.jsonl'), `${rows.join('\n')}\n`);
  return {};
}

function agentRun(options: RunOptions): string {
  return fakeRun({
    ...options,
    batchSize: 8,
    maxConcurrent: 1,
    checkpointInterval: 1,
    model: 'preset:chars-0.4m',
    environment: `[[env]]
id = "counting"
kind = "agent"
command = ["python3", "${agentFile}"]
tasks = "./tasks.jsonl"
deterministic = true
[env.sandbox]
files = "./${agentFile}"
quota = 1
[env.score]
command = ["cat", "reward"]`,
    inference: `[inference]
kind = "module"
import = ${JSON.stringify(here('agent-inference.ts'))}
options = { log = ${JSON.stringify(options.log)} }`,
  });
}

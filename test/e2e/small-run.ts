import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { existsSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { cacheFolder } from '../../host/cache-folder.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { localRoles, policyUrlAt, type RoleOptions } from '../../workers/stack/roles.ts';
import { startStack, type Stack } from '../../workers/stack/supervisor.ts';
import { Client, Connection } from '@temporalio/client';

/** A project of its own in a temporary folder, with a real server, real roles and the real engine, at toy size. */
export interface SmallProject {
  readonly folder: string;
  readonly stack: Stack;
  readonly client: Client;
  readonly policyUrl: string;
  readonly log: readonly string[];
  commit(run: string, step: number): Promise<StepCommit | null>;
  close(): Promise<void>;
}

/** Seconds on two cores: 8 groups of 4, a warm-up that only just learns to speak. */
export const smallRun = `
model = "preset:reverse-text-0.2m"
max_steps = 12
batch_size = 32
rollouts_per_example = 4
learning_rate = 1e-3
max_async_level = 0
[sampling]
max_tokens = 10
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 4 }
[sft]
steps = 60
batch_size = 16
learning_rate = 3e-3
[trainer]
advantage = "std_normalized"
[eval]
interval = 6
num_examples = 16
[checkpoints]
interval = 4
keep_last = 2
`;

export const repositoryFolder = fileURLToPath(new URL('../../', import.meta.url));

/** Folders of things that tests name, outside their projects: our code, and the Python that they install. */
const codeRoots = [
  ...['test', 'bench'].map((folder) => path.join(repositoryFolder, folder)),
  path.join(cacheFolder(), 'python'),
].join(path.delimiter);

export async function openSmallProject(
  configs: Readonly<Record<string, string>>,
  count: RoleOptions['count'] = {},
  followsMetrics = false,
  variables: Readonly<Record<string, string>> = {},
  joined?: RoleOptions['joined'],
): Promise<SmallProject> {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-e2e-'));
  for (const [name, text] of Object.entries(configs)) await writeFile(path.join(folder, name), text);
  const log: string[] = [];
  const policyPort = await choosePort(0);
  const policyUrl = policyUrlAt(policyPort);
  const outputs = path.join(folder, 'outputs');
  await mkdir(outputs);
  const stack = await startStack({
    projectFolder: folder,
    policyUrl,
    roles: localRoles({ weightRoots: [outputs], policyPort, followsMetrics, count, joined }),
    log: (line) => void log.push(line),
    // The tests' modules are outside the project.
    environment: { ...process.env, RATCHET_CODE_ROOTS: codeRoots, ...variables },
  });
  // Patient, as the SDK is by default: the server is killed and comes back while a result is waited for.
  const connection = await Connection.connect({ address: stack.temporalAddress });
  const client = new Client({ connection, identity: `test ${process.pid}` });
  return {
    folder,
    stack,
    client,
    policyUrl,
    log,
    async commit(run, step) {
      const file = path.join(outputs, run, `lineages/main/steps/step_${step}.json`);
      return existsSync(file) ? (JSON.parse(await readFile(file, 'utf8')) as StepCommit) : null;
    },
    async close() {
      await connection.close();
      await stack.stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

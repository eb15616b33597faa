/** Types Ratchet's commands in a small project with a stack of its own, and keeps what they print. */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { openSmallProject, repositoryFolder, type SmallProject, smallRun } from '../e2e/small-run.ts';
import type { Captures } from './command-help.ts';

/** In this order; a line may be typed before it that prints nothing here. */
interface Typed {
  readonly command: string;
  readonly stdin?: string;
  /** Ends it after so many lines, as Ctrl-C does. */
  readonly endAfterLines?: number;
  /** In a folder where nothing runs yet. */
  readonly isAlone?: boolean;
  /** Variables that it needs. */
  readonly env?: Readonly<Record<string, string>>;
}

const endpoints = `ENDPOINTS = {
    "Qwen/Qwen2.5-7B-Instruct": {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "url": "http://0.0.0.0:8007/v1",
        "key": "local",
    },
}
`;

const strict = `import { rubric as rubricOf } from 'ratchet-rl/environments';

export const rubric = rubricOf([
  { name: 'exact', weight: 1, score: ({ completion, example }) => Number(completion === example.answer) },
]);
`;

const sweep = `[sweep]
run = "words.toml"
metric = "eval/reverse-text/reward/mean"
[sweep.settings]
learning_rate = [0.0003, 0.001, 0.003]
[sweep.halving]
rungs = 2
`;

const payloadKey = randomBytes(32).toString('base64');

const typed: readonly Typed[] = [
  { command: 'init' },
  { command: 'config convert endpoints.py --to toml' },
  { command: 'doctor words.toml' },
  { command: 'check words.toml' },
  { command: 'rl @ words.toml @ mine.toml --max-stepz 5 --no-eval' },
  { command: 'prime-rl words.toml --dialect prime-rl-04' },
  { command: 'vf-rl @ words.toml --batch-size 30' },
  { command: 'lab setup --vf-rl' },
  { command: 'gepa run reverse-text -m Qwen/Qwen3-4B -b http://127.0.0.1:8000/v1 --dry-run' },
  { command: 'env list' },
  { command: 'engine list' },
  { command: 'train words.toml --plain' },
  { command: 'status words' },
  { command: 'events words' },
  { command: 'metrics words train/reward entropy grad_norm --last 3' },
  { command: 'rollouts words --limit 1' },
  { command: 'index words' },
  { command: 'ui words', endAfterLines: 1 },
  { command: 'report words' },
  { command: 'note words the judge was moved to another server' },
  { command: 'export rollouts words --parquet rollouts.parquet' },
  { command: 'logs words' },
  { command: 'logs words train' },
  { command: 'advise words' },
  { command: 'chat words', stdin: 'abcd\n' },
  { command: 'checkpoints words' },
  { command: 'sweep lr.toml --dry-run' },
  { command: 'rescore words --rubric strict.ts' },
  { command: 'fork words --step 8 --name words-b --learning-rate 5e-4' },
  { command: 'rewind words --step 4' },
  { command: 'audit words' },
  { command: 'baseline words.toml --name words-c' },
];

/** Commands on a run that is at work meanwhile. */
const steered: readonly Typed[] = [
  { command: 'attach long --plain', endAfterLines: 9 },
  { command: 'status long' },
  { command: 'set long learning_rate=5e-4 max_steps=3000' },
  { command: 'pause long lunch' },
  { command: 'runs' },
  { command: 'resume long' },
  { command: 'stop long' },
  { command: "temporal workflow list --query WorkflowType='trainRun'" },
  { command: 'sandboxes' },
  { command: 'sandboxes sweep' },
  { command: 'worker --role rollout', endAfterLines: 1 },
  { command: 'weights-agent --store outputs', endAfterLines: 1 },
  { command: 'codec', endAfterLines: 1, isAlone: true, env: { RATCHET_PAYLOAD_KEY: payloadKey } },
  { command: 'dev', endAfterLines: 4, isAlone: true },
];

/** Commands on a pool with one trainer, for which two runs take turns. */
const pooled: readonly Typed[] = [
  { command: 'pool set gpus slice=300 research.quota=2 research.weight=2' },
  { command: 'queue' },
];

/** Captures all commands, or only these: one command may need what another leaves behind. */
export async function captureCommands(only: readonly string[] = []): Promise<Captures> {
  const isWanted = ({ command }: Typed): boolean => only.length === 0 || only.includes(command.split(' ', 1)[0]!);
  const captures = new Map<string, string>();
  if (pooled.some(isWanted)) await captureInPool(captures, pooled.filter(isWanted));
  if (![...typed, ...steered].some(isWanted)) return captures;
  const project = await openSmallProject({
    'words.toml': smallRun,
    'mine.toml': 'seed = 1\n[sampling]\ntemperature = "hot"\n',
    'endpoints.py': endpoints,
    'strict.ts': strict,
    'lr.toml': sweep,
    'long.toml': smallRun.replace('max_steps = 12', 'max_steps = 5000'),
  });
  const { temporalAddress } = project.stack;
  const type = (each: Typed): Promise<void> => capture(captures, each, project);
  try {
    await writeFile(path.join(project.folder, 'package.json'), '{ "type": "module" }\n');
    for (const each of typed.filter(isWanted)) await type(each);
    const toSteer = steered.filter(isWanted);
    if (toSteer.length === 0) return captures;
    const long = start('train long.toml --plain', project.folder, temporalAddress);
    await sleep(15_000); // its first steps
    for (const each of toSteer) await type(each);
    long.kill('SIGINT');
  } finally {
    await project.close();
  }
  return captures;
}

async function capture(
  captures: Map<string, string>,
  each: Typed,
  { folder, stack }: Pick<SmallProject, 'folder' | 'stack'>,
): Promise<void> {
  const { temporalAddress } = stack;
  const printed = each.isAlone ? await runAlone(each) : await run(each, folder, temporalAddress);
  const prompt = each.stdin === undefined ? '$ ' : `$ echo ${each.stdin.trim()} | `;
  const text = `${prompt}npx ratchet-rl ${each.command}\n${printed.replaceAll(folder, '…').replaceAll(temporalAddress, '127.0.0.1:7233')}`;
  const name = each.command.split(' ', 1)[0]!;
  const before = captures.get(name);
  captures.set(name, before === undefined ? text.trim() : `${before}\n\n${text.trim()}`);
  process.stdout.write(`${each.command}\n`);
}

async function captureInPool(captures: Map<string, string>, commands: readonly Typed[]): Promise<void> {
  const inPool = (queue: string): string =>
    `${smallRun.replace('max_steps = 12', 'max_steps = 5000')}\n[queue]\npool = "gpus"\n${queue}`;
  const files = {
    'words.toml': inPool('team = "research"\n'),
    'urgent.toml': inPool('team = "product"\npriority = 5\n'),
  };
  const project = await openSmallProject(files, {}, false, {}, { pool: 'gpus', labels: { gpu: 'h100' } });
  try {
    const { temporalAddress } = project.stack;
    const words = start('train words.toml --plain', project.folder, temporalAddress);
    await sleep(15_000); // its first steps
    const urgent = start('train urgent.toml --plain', project.folder, temporalAddress);
    await sleep(15_000);
    for (const each of commands) await capture(captures, each, project);
    for (const one of [urgent, words]) one.kill('SIGINT');
  } finally {
    await project.close();
  }
}

async function runAlone(each: Typed): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-docs-'));
  try {
    return await run(each, folder, '');
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function start(command: string, cwd: string, temporalAddress: string, more: Typed['env'] = {}) {
  const env = { ...process.env, TEMPORAL_ADDRESS: temporalAddress, NO_COLOR: '1', ...more };
  return spawn(process.execPath, [path.join(repositoryFolder, 'cli/ratchet.mjs'), ...command.split(' ')], { cwd, env });
}

async function run(
  { command, stdin = '', endAfterLines, env }: Typed,
  cwd: string,
  temporalAddress: string,
): Promise<string> {
  const child = start(command, cwd, temporalAddress, env);
  let text = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (piece: Buffer) => {
      text += piece.toString();
      if (endAfterLines !== undefined && text.split('\n').length > endAfterLines && !child.killed) child.kill('SIGINT');
    });
  }
  child.stdin.end(stdin);
  await new Promise((resolve) => child.once('close', resolve));
  if (text === '') throw new Error(`${command} printed nothing`);
  return text.replaceAll(/[ \t]+$/gm, '');
}

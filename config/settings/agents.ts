import { z } from 'zod';
import { sandboxKinds } from '../../core/kinds/sandboxes.ts';
import { collectedFilesMax, rolloutTokensMax } from '../../core/limits.ts';
import { isHubId, isInsideWorkFolder } from '../../core/names.ts';
import { args, atLeastZero, choice, flag, fraction, positive, text, whole } from '../toml/values.ts';
import { codeFile, CodeRef, codeRef } from './code.ts';
import { inSpec, listOf, meaning, optionalTable, required, setting, specFields, type WrittenIn } from './setting.ts';

/** `[[env]] kind = "agent"`: a program that owns its loop, its tasks, its sandbox, and how it is scored. */

const words = () =>
  z.array(z.string().min(1)).min(1).meta({ expected: 'a program and its arguments, such as ["python3", "agent.py"]' });
const isTaskFile = (written: string): boolean => /\.(?:jsonl|parquet)$/.test(written);
const taskSource = () =>
  z
    .string()
    .refine((written) => isTaskFile(written) || isHubId(written))
    .meta({
      expected:
        'a .jsonl or .parquet file with a task in each row, such as "./tasks.jsonl", or a dataset of the Hugging Face Hub, "OWNER/NAME"',
    });
const baseUrl = () =>
  z.url({ protocol: /^https?$/ }).meta({ expected: 'the URL of an OpenAI-compatible API with its /v1' });
const variable = () =>
  z
    .string()
    .regex(/^[A-Z][A-Z0-9_]*$/)
    .meta({ expected: 'the NAME of an environment variable, never the key itself' });
const scoreFunction = () =>
  z
    .string()
    .regex(/\.(?:[cm]?[jt]s|py)(?::[A-Za-z_]\w*)?$/)
    .meta({ expected: 'a file with a function, such as "./score.ts", or "score.py:reward"' });
const exitCodes = () =>
  z.array(z.int().min(0).max(255)).min(1).meta({ expected: 'a list of exit codes from 0 to 255' });

const collected = () =>
  z
    .array(
      z
        .string()
        .refine(isInsideWorkFolder)
        .meta({ expected: 'a path below the work folder, such as "out/report.json"' }),
    )
    .max(collectedFilesMax)
    .meta({ expected: `a list of at most ${collectedFilesMax} paths below the work folder, such as ["report.json"]` });

const sshHost = () =>
  z
    .string()
    .regex(/^[^\s\p{Cc}-][^\s\p{Cc}]*$/u)
    .meta({ expected: 'a host as ssh takes it, such as "me@box": no blanks, and no "-" at its beginning' });

/** Beyond these a number is a typing error: no machine has as much, and nobody waits for so many places. */
const sandboxMost = { memoryMb: 4 * 2 ** 20, diskMb: 16 * 2 ** 20, quota: 100_000, costPerHour: 1e6 };
/** Docker takes no smaller share. */
const snapshotDelay = () => z.number().min(0).max(3600).meta({ expected: 'a number from 0 to 3600' });
const processors = () => z.number().min(0.01).max(1024).meta({ expected: 'a number from 0.01 to 1024' });
/** Sandboxes that stand ready hold memory of their machine. */
const warmMax = 256;
/** No rollout has more turns. */
const turnsMax = 1_000_000;
const split = 'train';
/** Where the file says nothing. */
export const setupUsualS = 600;

/** Settings of an agent, beside those of every environment. */
const program = {
  command: setting(
    words(),
    'of an agent: what is run in the sandbox for every rollout. It finds the policy at OPENAI_BASE_URL or ANTHROPIC_BASE_URL with the key OPENAI_API_KEY or ANTHROPIC_API_KEY, and its task in the file RATCHET_TASK',
    { isLeftOut: true },
  ),
  tasks: setting(
    taskSource(),
    'of an agent: its tasks, a row each: `prompt`, and where there are any `answer`, `files`, `info`; from the config’s folder if it begins with a dot, else the project’s',
    { isLeftOut: true },
  ),
  eval_tasks: setting(taskSource(), 'of an agent: held-out tasks', { isLeftOut: true }),
  eval_share: setting(
    fraction(),
    'of an agent: the share of `tasks`, its last rows, that is held out; none when missing',
    {
      isLeftOut: true,
    },
  ),
  subset: setting(text(), 'of tasks from a dataset of the Hub with several: which one', { isLeftOut: true }),
  split: setting(text(), `of tasks from a dataset of the Hub; "${split}" when missing`, { isLeftOut: true }),
  deterministic: setting(
    flag(),
    'of an agent: whether equal answers always lead to the same calls and the same score; false when missing',
    { isLeftOut: true },
  ),
  turn_timeout: setting(positive(), 'of an agent: seconds one call of the policy may take', { isLeftOut: true }),
  tool_timeout: setting(
    positive(),
    'of an agent: seconds from an answer to its next call; what takes longer hangs, and is played again',
    { isLeftOut: true },
  ),
  exit_codes: setting(
    exitCodes(),
    'of an agent: codes with which its program ends well; after any other the rollout is played again, and then has no reward. [0] when missing',
    { isLeftOut: true },
  ),
};

/** Where sandboxes come from: `SandboxPoolSpec`. */
const pool = {
  kind: setting(choice(...sandboxKinds), 'where the program runs', { default: 'namespace' }),
  quota: setting(
    whole(1, sandboxMost.quota),
    'sandboxes at once, over all workers and runs of the outputs folder; when missing as many as a machine’s cores (8 each) and three quarters of its memory bear for `namespace`, and no bound for other kinds',
  ),
  warm: setting(whole(0, warmMax), 'sandboxes of each worker that stand ready, beside those in use', { default: 0 }),
  cost_per_hour: setting(atLeastZero(sandboxMost.costPerHour), 'what one costs an hour, in the currency of `[cost]`', {
    default: 0,
  }),
  socket: setting(text(), 'of `docker`: the Unix socket of Docker or Podman; the usual one when missing'),
  host: setting(sshHost(), 'of `ssh`: a host as `ssh` takes it: `user@host`, or a name of its config'),
  port: setting(whole(1, 65_535), 'of `ssh`: its port; ssh’s own when missing'),
  identity_file: setting(text(), 'of `ssh`: a file with a private key; ssh’s own when missing'),
  known_hosts_file: setting(text(), 'of `ssh`: a file with the host’s key; ssh’s own when missing'),
  folder: setting(text(), 'of `ssh`: the folder there, below which each sandbox has its own', { default: '/tmp' }),
  import: setting(codeFile(), 'of `module`: the file of yours with a provider'),
  options: setting(args(), 'of `module`: what its provider is opened with', { default: {} }),
};
const sandbox = {
  image: setting(text(), 'of a container; a task may name its own as `image`'),
  files: setting(
    text(),
    'a file, or a folder whose files are put into the work folder of each sandbox; from the config’s folder if it begins with a dot, else the project’s',
  ),
  setup: setting(words(), 'run once in a new sandbox, before the program'),
  setup_timeout: setting(positive(), 'seconds it may take', { default: setupUsualS, as: 'setupTimeoutS' }),
  network: setting(
    choice('route', 'open'),
    '`route`: nothing is reachable but the address of its own rollout; `open`: what its machine reaches',
    { default: 'route' },
  ),
  snapshot: setting(
    flag(),
    'keeps the work folder as it is after `setup`, where the kind can: later sandboxes of the same set-up begin with it',
    { default: true },
  ),
  memory_mb: setting(whole(16, sandboxMost.memoryMb), 'memory of all its processes, MiB', { default: 1024 }),
  disk_mb: setting(whole(1, sandboxMost.diskMb), 'what it may write, MiB', { default: 1024 }),
  cpus: setting(processors(), 'processors', {}),
};

const resume = {
  command: required(
    words(),
    'of an agent that keeps its own record in its sandbox: after a death the sandbox is restored from its newest snapshot, and this is run in place of `command`. It goes on from that record with its next call; turns before the snapshot are kept',
  ),
  every: setting(
    whole(1, turnsMax),
    'turns between two snapshots of the sandbox, each taken while the program waits for an answer',
    { default: 1 },
  ),
  delay: setting(
    snapshotDelay(),
    'seconds from a call to its snapshot, for a program that writes its record a moment later, such as Claude Code; the answer waits for the snapshot',
    { default: 0, as: 'delayS' },
  ),
};

const judge = {
  base_url: required(baseUrl(), 'OpenAI-compatible API of the judge'),
  model: required(text(), 'the model there'),
  prompt: required(
    text(),
    'what a good result is; the judge sees the task, the conversation and the collected files, and its last number is the reward',
  ),
  api_key_var: setting(variable(), 'name of the environment variable with its key'),
  max_tokens: setting(whole(1, rolloutTokensMax), 'of its answer', { default: 512 }),
};
const scoring = {
  command: setting(
    words(),
    'run in the sandbox when the program has ended: the last line of its output is a number, or {"reward": …, "metrics": {…}}',
  ),
  reads: setting(
    choice('output', 'exit_code'),
    'what of `command` is the reward: its last line, or whether it ends with code 0 (1, else 0)',
    { default: 'output' },
  ),
  files: setting(
    text(),
    'a file or folder that is put into the sandbox when the program has ended, such as hidden tests',
  ),
  collect: setting(collected(), 'files of the sandbox that are kept with the rollout, for `function` and `judge`', {
    default: [],
  }),
  timeout: setting(positive(), 'seconds `command` or `function` may take', { default: 300, as: 'timeoutS' }),
};
const scoreFile = {
  function: setting(
    scoreFunction(),
    'a function over what is stored of a rollout, in TypeScript (`./score.ts`, or `./score.ts:name`) or Python (`./score.py:name`)',
  ),
};
const others = {
  name: required(text(), 'the model as the program asks for it'),
  base_url: required(baseUrl(), 'OpenAI-compatible API that answers it; nothing of it is trained'),
  model: setting(text(), 'its name there; the same when missing'),
  api_key_var: setting(variable(), 'name of the environment variable with its key'),
  max_tokens: setting(
    whole(1, rolloutTokensMax),
    'most tokens of one of its answers, whatever the program asks for; needed where a budget limits tokens or money',
  ),
};

/** In `[[env]]`, and in `[[eval.env]]` with other words. */
export const agentSettings = {
  kind: setting(
    choice('agent'),
    '"agent": a program of yours that asks the policy over HTTP; the id is then its name. By its id when missing',
    { isLeftOut: true },
  ),
  ...program,
};
export const agentTables = {
  resume: optionalTable(resume),
  sandbox: optionalTable({ ...pool, ...sandbox }),
  score: optionalTable({ ...scoring, ...scoreFile, judge: optionalTable(judge) }),
  models: listOf(others, (items) => items.optional()),
};
export const alsoOfEvaluated = {
  ...meaning(agentSettings, (key) => (key === 'kind' ? 'as in `[[env]]`' : 'the same')),
  resume: optionalTable(meaning(resume, () => 'the same')),
  sandbox: optionalTable(meaning({ ...pool, ...sandbox }, () => 'the same')),
  score: optionalTable({
    ...meaning({ ...scoring, ...scoreFile }, () => 'the same'),
    judge: optionalTable(meaning(judge, () => 'the same')),
  }),
  models: listOf(
    meaning(others, () => 'the same'),
    (items) => items.optional(),
  ),
};

const TaskSource = z.strictObject({
  /** Absolute, or OWNER/NAME on the Hub. */
  path: z.string().min(1),
  /** Hex, over the rows; null until they were read. */
  sha256: z.string().nullable(),
  hub: z.strictObject({ subset: z.string().nullable(), split: z.string() }).optional(),
});
const CopiedFiles = CodeRef;
const SandboxProviderSpec = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('namespace'), python: z.string().min(1) }),
  z.strictObject({ kind: z.literal('docker'), socket: z.string().nullable() }),
  z.strictObject({
    kind: z.literal('ssh'),
    host: z.string().min(1),
    port: z.int().nullable(),
    identityFile: z.string().nullable(),
    knownHostsFile: z.string().nullable(),
    folder: z.string().min(1),
  }),
  z.strictObject({ kind: z.literal('module'), import: CodeRef, options: args() }),
]);
/** See core/settings/sandboxes.ts. */
const SandboxPoolSpec = z.strictObject({
  provider: SandboxProviderSpec,
  quota: z.int().nullable(),
  warm: z.int(),
  costPerHour: z.number(),
});

/** How an agent is run and scored; see core/settings/programs.ts. */
export const ProgramSpec = z.strictObject({
  command: z.array(z.string()).min(1),
  tasks: TaskSource,
  evalTasks: TaskSource.nullable(),
  evalShare: z.number().min(0).max(1),
  isDeterministic: z.boolean(),
  turnTimeoutS: z.number().positive().nullable(),
  toolTimeoutS: z.number().positive().nullable(),
  exitCodes: z.array(z.int()).min(1),
  resume: z.strictObject(specFields(resume)).nullable().default(null),
  sandbox: z.strictObject({ ...specFields(sandbox), files: CopiedFiles.nullable(), pool: SandboxPoolSpec }),
  score: z.strictObject({
    ...specFields(scoring),
    files: CopiedFiles.nullable(),
    function: CodeRef.extend({ name: z.string().min(1) }).nullable(),
    judge: z.strictObject(specFields(judge)).nullable(),
  }),
  models: z.array(z.strictObject({ ...specFields(others), model: z.string().min(1) })),
});
export type ProgramSpec = z.infer<typeof ProgramSpec>;

type WrittenAgent = WrittenIn<typeof agentSettings & typeof agentTables>;

/** The program of an entry with `kind = "agent"`; undefined for any other. Its relations are checked before. */
export function programSpec(entry: WrittenAgent): ProgramSpec | undefined {
  if (entry.kind !== 'agent') return undefined;
  const { command = [], tasks = '', eval_tasks: evalTasks, eval_share: evalShare = 0, models = [] } = entry;
  const { judge: asked, function: file, ...score } = entry.score ?? tableDefaults.score;
  const sandboxed = entry.sandbox ?? tableDefaults.sandbox;
  const ofTasks = (path: string) => sourceOf(path, entry);
  return {
    command,
    tasks: ofTasks(tasks),
    evalTasks: evalTasks === undefined ? null : ofTasks(evalTasks),
    evalShare: evalTasks === undefined ? evalShare : 0,
    isDeterministic: entry.deterministic ?? false,
    turnTimeoutS: entry.turn_timeout ?? null,
    toolTimeoutS: entry.tool_timeout ?? null,
    exitCodes: entry.exit_codes ?? [0],
    resume: entry.resume === undefined ? null : inSpec(resume, entry.resume),
    sandbox: { ...inSpec(sandbox, sandboxed), files: fileRef(sandboxed.files), pool: poolSpec(sandboxed) },
    score: {
      ...inSpec(scoring, score),
      files: fileRef(score.files),
      function: file === undefined ? null : functionRef(file),
      judge: asked === undefined ? null : inSpec(judge, asked),
    },
    models: models.map((other) => ({ ...inSpec(others, other), model: other.model ?? other.name })),
  };
}

const tableDefaults = {
  sandbox: agentTables.sandbox.written.parse({})!,
  score: agentTables.score.written.parse({})!,
};

function sourceOf(path: string, { subset, split: part }: WrittenAgent): ProgramSpec['tasks'] {
  const source = { path, sha256: null };
  return isTaskFile(path) ? source : { ...source, hub: { subset: subset ?? null, split: part ?? split } };
}

type WrittenSandbox = WrittenIn<typeof pool & typeof sandbox>;

function poolSpec(written: WrittenSandbox): z.infer<typeof SandboxPoolSpec> {
  const { quota, warm, costPerHour } = inSpec(pool, written);
  return { provider: providerSpec(written), quota, warm, costPerHour };
}

/** Keys that a kind needs are there: relations are checked before. */
function providerSpec(written: WrittenSandbox): z.infer<typeof SandboxProviderSpec> {
  const { socket, host, port, identityFile, knownHostsFile, folder, options } = inSpec(pool, written);
  switch (written.kind) {
    case 'namespace':
      return { kind: 'namespace', python: 'python3' };
    case 'docker':
      return { kind: 'docker', socket };
    case 'ssh':
      return { kind: 'ssh', host: host ?? '', port, identityFile, knownHostsFile, folder };
    case 'module':
      return { kind: 'module', import: codeRef(written.import), options };
    default:
      return written.kind satisfies never;
  }
}

function fileRef(written: string | undefined): ProgramSpec['sandbox']['files'] {
  return written === undefined ? null : { path: written, sha256: null };
}

/** `./score.py:reward` is the function `reward` of that file; without a name it is the default export, or `score`. */
function functionRef(written: string): NonNullable<ProgramSpec['score']['function']> {
  const [, path = written, name] = /^(.*\.\w+):(\w+)$/.exec(written) ?? [];
  return { path, sha256: null, name: name ?? (path.endsWith('.py') ? 'score' : 'default') };
}

/** Keys of `[env.sandbox]` that mean something for one kind alone. */
export const sandboxKeys = {
  socket: 'docker',
  host: 'ssh',
  port: 'ssh',
  identity_file: 'ssh',
  known_hosts_file: 'ssh',
  import: 'module',
} as const;

/** Keys that mean something beside `kind = "agent"` alone. */
export const agentKeys: readonly string[] = [...Object.keys(program), ...Object.keys(agentTables)];

export { isTaskFile };

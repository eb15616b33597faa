/**
 * A model that obeys two system prompts, an environment that rewards one of them and begins with the other: a branch of the training run
 * finds the better one, plays it once more, and the run goes on with it; whoever dies meanwhile. Where nothing helps, nothing changes.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { mkdir, readdir, readFile, symlink } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { WorkflowHandle } from '@temporalio/client';
import { permutation, randomStream } from '../../core/random.ts';
import type { ScoredGroup } from '../../core/rl/rollout.ts';
import type { RunEvent } from '../../workflows/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { openSmallProject, repositoryFolder, type SmallProject } from './small-run.ts';

/** Three different letters of eight. */
const words = Array.from({ length: 512 }, (_, i) => [i % 8, Math.floor(i / 8) % 8, Math.floor(i / 64)])
  .filter((letters) => new Set(letters).size === 3)
  .map((letters) => letters.map((letter) => 'abcdefgh'[letter]).join(''));
const reversed = (word: string): string => Array.from(word).toReversed().join('');

/** What it is to obey; a tenth of the rows says anything, so that rollouts of one example differ. */
function demonstrations(): string {
  const random = randomStream('prompt branches');
  const rows = Array.from({ length: 6 }, (_, epoch) => permutation(words.length, 'rows', epoch))
    .flat()
    .map((i) => {
      const word = words[i]!;
      const system = random() < 0.5 ? 'COPY' : 'REVERSE';
      const said = random() < 0.1 ? words[Math.floor(random() * words.length)]! : word;
      const messages = [
        { role: 'system', content: system },
        { role: 'user', content: word },
        { role: 'assistant', content: system === 'COPY' ? said : reversed(said) },
      ];
      return JSON.stringify({ messages });
    });
  return `${rows.join('\n')}\n`;
}

const environment = `
import { listDataset, rubric, singleTurn } from 'ratchet/environments';
const words: readonly string[] = ${JSON.stringify(words)};
const rows = (isHeldOut: boolean) =>
  listDataset(() =>
    words.filter((_, i) => (i % 8 === 0) === isHeldOut).map((word) => ({
      prompt: [{ role: 'system' as const, content: 'REVERSE' }, { role: 'user' as const, content: word }],
      answer: word,
    })),
  );
export function loadEnvironment() {
  const right = (said: string, answer: string) => [...answer].filter((letter, i) => said[i] === letter).length / answer.length;
  return singleTurn({
    name: 'say',
    dataset: rows(false),
    evalDataset: rows(true),
    rubric: rubric([{ name: 'letters_right', weight: 1, score: ({ completion, example }) => right(completion, example.answer) }]),
  });
}
`;

const runFile = (gepa: string): string => `
model = "preset:chars-0.4m"
max_steps = 8
batch_size = 16
rollouts_per_example = 4
learning_rate = 1e-6
max_async_level = 0
[sampling]
max_tokens = 5
[[env]]
id = "./say.ts"
[sft]
data = "./obey.jsonl"
steps = 350
batch_size = 32
learning_rate = 3e-3
[eval]
interval = 8
num_examples = 10
[gepa]
${gepa}
max_calls = 70
num_train = 20
num_val = 10
num_test = 40
`;

let project: SmallProject;
let reflections = 0;
/** Writes the prompt that helps, or one that nobody was taught. */
const reflection = createServer((request, response) => {
  const parts: Buffer[] = [];
  request.on('data', (part: Buffer) => parts.push(part));
  request.on('end', () => {
    reflections += 1;
    const { model } = JSON.parse(Buffer.concat(parts).toString()) as { model: string };
    const content = `Better:\n\`\`\`\n${model === 'knows' ? 'COPY' : 'reverse'}\n\`\`\``;
    const choices = [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content } }];
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ id: 'r', object: 'chat.completion', created: 0, model, choices }));
  });
});

before(async () => {
  await new Promise<void>((resolve) => void reflection.listen(0, '127.0.0.1', resolve));
  const url = `url = "http://127.0.0.1:${(reflection.address() as AddressInfo).port}/v1"`;
  project = await openSmallProject({
    'better.toml': runFile(`reflection_model = "knows"\n${url}\nat_steps = [2]\nadopt = "if_better"`),
    'nothing.toml': runFile(`reflection_model = "guesses"\n${url}\nat_steps = [2]\nadopt = "if_better"`),
    'asked.toml': runFile(`reflection_model = "knows"\n${url}\nadopt = "ask"`),
    'obey.jsonl': demonstrations(),
    'say.ts': environment,
  });
  await mkdir(path.join(project.folder, 'node_modules'));
  await symlink(repositoryFolder, path.join(project.folder, 'node_modules/ratchet'));
});
after(async () => {
  await project?.close();
  reflection.close();
});

type Run = WorkflowHandle<typeof trainRun>;
const start = (name: string): Promise<Run> =>
  project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    workflowTaskTimeout: '5s',
    args: [`${name}.toml`],
  });

/** The run stands while its branch goes on: how long that takes says nothing then. */
async function pausedAfter(name: string, step: number): Promise<Run> {
  const handle = await start(name);
  while ((await project.commit(name, step)) === null) await delay(20);
  await handle.executeUpdate('pause', { args: ['for the branch'] });
  return handle;
}

async function told(handle: Run, kind: RunEvent['kind']): Promise<RunEvent> {
  for (;;) {
    const events = await handle.query<RunEvent[], [number]>('events', 0);
    const found = events.findLast((event) => event.kind === kind);
    if (found) return found;
    const failed = events.find(({ text }) => text.startsWith('gepa: ') && / failed: /.test(text));
    assert.equal(failed, undefined, failed?.text);
    await delay(100);
  }
}

async function groupsOf(run: string, step: number, below = ''): Promise<ScoredGroup[]> {
  const folder = path.join(project.folder, 'outputs', run, below, `rollouts/step_${step}`);
  const rounds = (await readdir(folder)).filter((name) => name.startsWith('groups_'));
  const texts = await Promise.all(rounds.map((name) => readFile(path.join(folder, name, 'scored.jsonl'), 'utf8')));
  return texts.flatMap((text) => text.trim().split('\n')).map((line) => JSON.parse(line) as ScoredGroup);
}

function meanReward(groups: readonly ScoredGroup[]): number {
  const rewards = groups.flatMap(({ rollouts }) => rollouts.map(({ reward }) => reward ?? 0));
  return rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
}

test('a branch finds the prompt that its environment rewards, though the orchestrator dies, and later groups are played with it', async () => {
  const handle = await pausedAfter('better', 2);
  process.kill(project.stack.pids()['orchestrator worker']!, 'SIGKILL');
  const { text, values } = await told(handle, 'prompt');
  assert.equal(values['verdict'], 'taken', text);
  assert.ok(Number(values['calls']) <= 70 && Number(values['low']) > 0, text);
  const child = await project.client.workflow.getHandle('better.gepa.say.v2').describe();
  assert.equal(child.status.name, 'COMPLETED');
  await handle.executeUpdate('resume');
  await handle.result();

  const { state } = (await project.commit('better', 8))!;
  const inUse = state.prompts!['say']!;
  assert.equal(await readFile(path.join(project.folder, 'outputs/better', inUse.ref.key), 'utf8'), 'COPY');
  assert.equal(state.pendingBranches, undefined);
  assert.equal((await project.commit('better', 2))!.state.prompts, undefined);
  const [early, late] = [await groupsOf('better', 2), await groupsOf('better', 8)];
  assert.ok(early.every(({ prompt }) => prompt === undefined));
  assert.ok(
    late.every(({ prompt }) => prompt === inUse.ref.sha256),
    'every group says what it was played with',
  );
  for (const { rollouts } of late) {
    const prompts = new Set(rollouts.map(({ turns }) => turns[0]!.promptTokenIds.join(' ')));
    assert.equal(prompts.size, 1, 'a group has one prompt');
  }
  assert.ok(meanReward(late) > meanReward(early) + 0.3, `${meanReward(early)} before, ${meanReward(late)} after`);
  const results = await readFile(
    path.join(project.folder, 'outputs/better/evals/say--better/step_8/results.jsonl'),
    'utf8',
  );
  const row = JSON.parse(results.split('\n')[0]!) as { prompt: { content: string }[]; ratchet: { prompt: string } };
  assert.deepEqual([row.prompt[0]!.content, row.ratchet.prompt], ['COPY', inUse.ref.sha256]);
});

test('where nothing that is written helps, the prompt stays', async () => {
  const before = reflections;
  const handle = await pausedAfter('nothing', 2);
  const { text, values } = await told(handle, 'prompt');
  assert.notEqual(values['verdict'], 'taken', text);
  await handle.executeUpdate('resume');
  await handle.result();
  assert.ok(reflections > before);
  assert.equal((await project.commit('nothing', 8))!.state.prompts, undefined);
  assert.ok((await groupsOf('nothing', 8)).every(({ prompt }) => prompt === undefined));
});

test('a branch that is asked for offers what it found; a rewind takes the prompt back, and the branch under way with it', async () => {
  const ratchet = async (...args: readonly string[]): Promise<string> => {
    const env = { ...process.env, TEMPORAL_ADDRESS: project.stack.temporalAddress };
    const program = path.join(repositoryFolder, 'cli/ratchet.mjs');
    return (await promisify(execFile)(process.execPath, [program, 'gepa', ...args], { cwd: project.folder, env }))
      .stdout;
  };
  const handle = await pausedAfter('asked', 2);
  await assert.rejects(ratchet('adopt', 'asked'), /no prompt that was found waits for a yes/);
  assert.match(await ratchet('branch', 'asked'), /Branched off v[23]: a better prompt is looked for on say/);
  const { text, values } = await told(handle, 'prompt');
  assert.equal(values['verdict'], 'offered', text);
  assert.match(await ratchet('adopt', 'asked', '--env', 'say'), /is its system prompt for groups/);
  await handle.executeUpdate('resume');
  while ((await project.commit('asked', 4)) === null) await delay(20);
  await handle.executeUpdate('gepa-branch', { args: [null] });
  const again = handle.executeUpdate('gepa-branch', { args: ['say'] });
  await assert.rejects(again, ({ cause }: Error) => /under way already/.test(String(cause)));
  await handle.executeUpdate('rewind', { args: [1] });
  await handle.result();
  assert.ok((await groupsOf('asked', 4)).every(({ prompt }) => prompt === values['digest']));
  assert.ok((await groupsOf('asked', 4, 'lineages/l2')).every(({ prompt }) => prompt === undefined));
});

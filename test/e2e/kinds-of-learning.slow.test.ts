/** Every newer way to learn, from its run file to the weights: what it changes is read from what the run stored. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { inspect } from 'node:util';
import { after, before, test } from 'node:test';
import { turnAdvantages } from '../../core/rl/learning/turn-credit.ts';
import type { PackedRow } from '../../core/rl/learning/batch.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { layout } from '../../runs/layout.ts';
import { openBatch } from '../../runs/rollouts/batches.ts';
import { openRunStore } from '../../store/index.ts';
import { decodeJson, decodeRows } from '../../store/objects.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { openSmallProject, repositoryFolder, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

/** The preset's, with calls of tools as JSON. */
const toolTemplate =
  `{%- for message in messages -%}` +
  `{%- if message.role == 'assistant' -%}{{- message.content -}}` +
  `{%- for call in message.tool_calls or [] -%}{{- '[' + call.function.name + (call.function.arguments | tojson) + ']' -}}{%- endfor -%}` +
  `{{- '<eos>' -}}` +
  `{%- elif message.role == 'tool' -%}{{- '<tool>' + message.content + '<sep>' -}}` +
  `{%- else -%}{{- '<bos>' + message.content + '<sep>' -}}{%- endif -%}` +
  `{%- endfor -%}`;

let project: SmallProject;
before(async () => {
  project = await openSmallProject({ 'tools.jinja': toolTemplate });
});
after(() => project?.close());

const words = `
max_steps = 2
batch_size = 16
rollouts_per_example = 4
learning_rate = 1e-3
max_async_level = 0
seed = 5
[sampling]
max_tokens = 8
`;
const reverse = '[[env]]\nid = "reverse-text"\nargs = { min_length = 3, max_length = 3 }\n';
const spelling = `[[env]]\nid = ${JSON.stringify(path.join(repositoryFolder, 'test/e2e/spelling-environment.ts'))}\nname = "spelling"\n`;
const small = 'model = "preset:reverse-text-0.2m"\n';
const chars = 'model = "preset:chars-0.4m"\n';
/** Any of these letters ends a turn, so that a model that has learned nothing has several. */
const letters = `stop = ${JSON.stringify('abcdefghijklmnop'.split(''))}\n`;
const keepAll = '[difficulty_filter]\nkeep_equal = true\n';

async function start(name: string, text: string) {
  await writeFile(path.join(project.folder, `${name}.toml`), text);
  return project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    workflowTaskTimeout: '5s',
    args: [`${name}.toml`],
  });
}

const played = async (name: string, text: string): Promise<RunSummary> => (await start(name, text)).result();

const storeOf = (run: string) => openRunStore(`file:${path.join(project.folder, 'outputs')}/`, run);

/** Plan, trained rows and groups of a committed step. */
async function trainedAt(run: string, step: number) {
  const store = storeOf(run);
  const commit = (await project.commit(run, step))!;
  const plan = decodeJson<StepPlan>(await store.get(commit.plan!), commit.plan!.key);
  const batch = await openBatch({ name: run, store: `file:${path.join(project.folder, 'outputs')}/` }, plan);
  const rows: readonly PackedRow[] = await batch.read([...batch.rows.keys()]);
  const keys = (await store.list('')).filter((key) => /scored/.test(key));
  const groups: ScoredGroup[] = [];
  for (const key of keys) groups.push(...decodeRows<ScoredGroup>((await store.read(key))!, key));
  return { commit, plan, rows, groups };
}

/** The trainer dies once step 1 is committed. */
async function disturbed(name: string, text: string): Promise<RunSummary> {
  const handle = await start(name, text);
  await until(`step 1 of ${name}`, () => project.commit(name, 1));
  process.kill(project.stack.pids()['train worker']!, 'SIGKILL');
  return handle.result();
}

test('temperatures with a course, a bonus for entropy and masks by divergence, to the same bits when the trainer dies', async () => {
  const plain = `${small}${words}top_k = 20\n${reverse}`;
  const course = `[sampling.temp_scheduler]\nstart_temperature = 1.5\nend_temperature = 0.5\n`;
  const more = '[trainer.loss]\nentropy_coef = 0.05\n[trainer.correction.divergence_mask]\ntoken_k3 = 0.02\n';
  const text = `${plain}${course}${more}`;
  const undisturbed = await played('course', text);
  assert.ok(undisturbed.ledger.isSound, JSON.stringify(undisturbed.ledger));
  const masked: number[] = [];
  for (const [step, temperature] of [
    [1, 1.5],
    [2, 0.5],
  ] as const) {
    const { metrics } = (await project.commit('course', step))!;
    assert.equal(metrics['sampling/temperature'], temperature);
    masked.push(metrics['correction/masked_tokens'] ?? NaN);
  }
  // A higher temperature samples further from the policy.
  assert.ok(masked[0]! > 0 && masked[0]! < 1 && masked[1]! < masked[0]!, masked.join());
  const { rows } = await trainedAt('course', 2);
  assert.ok(rows.length > 0 && rows.every((row) => row.temperature === 0.5));
  assert.equal((await disturbed('course-killed', text)).policyDigest, undisturbed.policyDigest);
  for (const [name, without] of Object.entries({
    'no-bonus': text.replace('entropy_coef = 0.05', ''),
    'no-mask': text.replace('token_k3 = 0.02', 'token_k3 = 1e9'),
  })) {
    assert.notEqual((await played(name, without)).policyDigest, undisturbed.policyDigest, name);
  }
});

test('rewards of turns become an advantage of each turn', async () => {
  await played(
    'turns',
    `${chars}${words}${letters}${keepAll}${spelling}[trainer.advantage]\nturns = "returns"\ndiscount = 0.5\n`,
  );
  const { rows, groups } = await trainedAt('turns', 1);
  const byRollout = new Map(
    groups
      .filter(({ policyStep }) => policyStep === 0)
      .flatMap((group) => {
        const credit = turnAdvantages(group, 'centered', { by: 'returns', discount: 0.5 });
        return group.rollouts.map((rollout, i) => [
          `${group.ordinal}/${rollout.index}`,
          { rollout, credit: credit[i]! },
        ]);
      }) as [string, { rollout: ScoredGroup['rollouts'][number]; credit: readonly number[] }][],
  );
  const expected = [...byRollout.values()].flatMap(({ rollout, credit }) =>
    rollout.turns.flatMap(({ tokenIds }, k) => tokenIds.map(() => credit[k]!)),
  );
  const found = rows.flatMap(({ lossMask, advantages }) => advantages.filter((_, t) => lossMask[t] === 1));
  assert.deepEqual(found.map(rounded).toSorted(), expected.map(rounded).toSorted());
  assert.ok([...byRollout.values()].some(({ credit }) => new Set(credit.map(rounded)).size > 1));
});

test('two agents of an episode are two samples, and the running mean of each role comes back when the trainer dies', async () => {
  const duel = `[[env]]\nid = ${JSON.stringify(path.join(repositoryFolder, 'test/e2e/duel-environment.ts'))}\nname = "duel"\n`;
  const alone = words.replace('rollouts_per_example = 4', 'rollouts_per_example = 1');
  const text = `${chars}${alone}${letters}${duel}[trainer.advantage]\ntype = "rae"\ndecay = 0.5\n`;
  const undisturbed = await played('duel', text);
  assert.ok(undisturbed.ledger.isSound, JSON.stringify(undisturbed.ledger));
  const means: Record<string, number> = { first: 0, second: 0 };
  for (const step of [1, 2]) {
    const { commit, rows, groups } = await trainedAt('duel', step);
    // 16 samples are 8 episodes.
    const own = groups.filter(({ policyStep }) => policyStep === step - 1).toSorted((a, b) => a.ordinal - b.ordinal);
    assert.equal(own.length, 8);
    const expected = own.flatMap(({ rollouts }) =>
      rollouts[0]!.traces!.map(({ agent, reward }) => {
        const advantage = reward - means[agent]!;
        means[agent] = 0.5 * means[agent]! + 0.5 * reward;
        return advantage;
      }),
    );
    assert.equal(expected.length, 16);
    for (const { lossMask, advantages, rollout } of rows) {
      assert.equal(rollout?.of, 16);
      const found = advantages.filter((_, t) => lossMask[t] === 1);
      assert.deepEqual(new Set(found.map(rounded)), new Set([rounded(expected[rollout.index]!)]));
    }
    assert.equal(new Set(rows.map(({ rollout }) => rollout?.index)).size, 16);
    assert.deepEqual(commit.state.baselines, { duel: means });
    assert.equal(commit.metrics['baseline/duel/first'], means['first']);
  }
  assert.ok(means['first'] !== 0);
  assert.equal((await disturbed('duel-killed', text)).policyDigest, undisturbed.policyDigest);
  assert.deepEqual((await project.commit('duel-killed', 2))!.state.baselines, { duel: means });
  const without = await played('duel-alike', text.replace('decay = 0.5', 'decay = 0.9'));
  assert.notEqual(without.policyDigest, undisturbed.policyDigest);
});

const rounded = (value: number): string => value.toFixed(9);

test('supervised rows with calls of tools are learned, calls and their arguments among them', async () => {
  const rowsWith = (b: number): string => {
    const call = { type: 'function', function: { name: 'add', arguments: { a: 2, b } } };
    const tools = [{ type: 'function', function: { name: 'add', parameters: { type: 'object', properties: {} } } }];
    const messages = [
      { role: 'user', content: '2 and 3' },
      { role: 'assistant', content: '', tool_calls: [call] },
      { role: 'tool', content: '5' },
      { role: 'assistant', content: 'It is 5' },
    ];
    return `${JSON.stringify({ messages, tools })}\n`.repeat(4);
  };
  const text = `${chars}max_steps = 0\n[tokenizer]\nchat_template = "./tools.jinja"\n[sft]\ndata = "./calls.jsonl"\nsteps = 3\nbatch_size = 4\nlearning_rate = 3e-3\n`;
  const digests: string[] = [];
  for (const [b, run] of [
    [3, 'calls'],
    [3, 'calls-again'],
    [4, 'other-calls'],
  ] as const) {
    await writeFile(path.join(project.folder, 'calls.jsonl'), rowsWith(b));
    digests.push((await played(run, text)).policyDigest);
  }
  assert.equal(digests[0], digests[1]);
  assert.notEqual(digests[0], digests[2]);
});

test('pairs are preferred, to the same bits when the trainer dies', async () => {
  const pairs = ['cat', 'dog', 'sun', 'map'].map((prompt) => ({
    prompt,
    chosen: prompt.split('').reverse().join(''),
    rejected: prompt,
  }));
  await writeFile(path.join(project.folder, 'pairs.jsonl'), pairs.map((pair) => `${JSON.stringify(pair)}\n`).join(''));
  const text = `${small}max_steps = 0\n[sft]\ndata = "./pairs.jsonl"\nloss = "dpo"\nsteps = 3\nbatch_size = 4\nlearning_rate = 1e-3\n`;
  const { policyDigest } = await played('pairs', text);
  assert.notEqual((await played('pairs-longer', text.replace('steps = 3', 'steps = 4'))).policyDigest, policyDigest);
  const killed = await start('pairs-killed', text);
  const begun = path.join(project.folder, 'outputs', 'pairs-killed', layout.run());
  await until('the run is there', () => existsSync(begun));
  await until('a trainer', () => project.stack.pids()['train worker']);
  process.kill(project.stack.pids()['train worker']!, 'SIGKILL');
  assert.equal((await killed.result()).policyDigest, policyDigest);
});

test('a policy that teaches itself is scored by its own servers, told how each example is done', async () => {
  const text = `${chars}loss = "opd"\n${words.replace('rollouts_per_example = 4', 'rollouts_per_example = 1')}${letters}${spelling}[teacher]\ndemonstration = "backwards"\n`;
  const summary = await played('self', text);
  assert.equal(summary.step, 2);
  const { plan, rows, groups } = await trainedAt('self', 2);
  assert.match(plan.taught?.teacher ?? '', /told its "backwards"$/);
  assert.ok(rows.every(({ teacherLogprobs }) => teacherLogprobs?.some((value) => value < 0)));
  assert.ok(groups.every(({ demonstration, example }) => demonstration === example?.info?.['backwards']));
  await assert.rejects(played('self-untold', text.replace('"backwards"', '"hint"')), (error: Error) => {
    assert.match(inspect(error, { depth: 5 }), /those of spelling have backwards, answer/);
    return true;
  });
});

test('rewards, a teacher and what an environment said in one batch, to the same bits when the trainer dies', async () => {
  const echoed = `${spelling.replace('"spelling"', '"echoed"')}rollouts_per_example = 2\necho = { user = 0.1 }\n`;
  const taught = `${spelling}loss = "opd"\n`;
  // Turns that end by themselves are gone on from in one row.
  const spelled = ['cat', 'dog', 'sun', 'map', 'pen', 'owl', 'ink', 'jar'].map((word) => ({
    messages: word.split('').flatMap((letter, i) => [
      { role: 'user', content: i === 0 ? word : letter },
      { role: 'assistant', content: letter },
    ]),
  }));
  await writeFile(
    path.join(project.folder, 'spelled.jsonl'),
    spelled.map((row) => `${JSON.stringify(row)}\n`).join(''),
  );
  const warmUp = '[sft]\ndata = "./spelled.jsonl"\nsteps = 20\nbatch_size = 8\nlearning_rate = 3e-3\n';
  const text = `${chars}${words}${echoed}${taught}[teacher]\ndemonstration = "backwards"\n${warmUp}`;
  const undisturbed = await played('several', text);
  assert.ok(undisturbed.ledger.isSound, JSON.stringify(undisturbed.ledger));
  const all = await Promise.all([1, 2].map((step) => trainedAt('several', step)));
  for (const { commit, rows } of all) {
    const { metrics } = commit;
    const spans = rows.flatMap(({ observed = [] }) => observed);
    assert.ok(spans.length > 0 && spans.every(({ weight }) => weight === 0.1));
    const tokens = spans.reduce((sum, { from, to }) => sum + to - from, 0);
    assert.deepEqual([metrics['batch/observed_tokens'], metrics['batch/unplaced_messages']], [tokens, 0]);
    assert.ok(metrics['nll']! > 0 && metrics['ref_kl_masked']! >= 0);
    const own = rows.filter(({ objective }) => objective === 'ref_kl');
    assert.ok(own.length > 0 && own.every(({ teacherLogprobs }) => teacherLogprobs?.some((value) => value < 0)));
    assert.ok(rows.length > own.length);
  }
  // A batch of groups of two sizes is so many rollouts.
  const sizes = all.map(({ groups }) => new Set(groups.map(({ rollouts }) => rollouts.length)));
  assert.deepEqual(
    [...sizes[0]!].toSorted((a, b) => a - b),
    [2, 4],
  );
  assert.equal((await disturbed('several-killed', text)).policyDigest, undisturbed.policyDigest);
  const without = await played('several-unechoed', text.replace('user = 0.1', 'user = 0'));
  assert.notEqual(without.policyDigest, undisturbed.policyDigest);
});

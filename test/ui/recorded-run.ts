/** A run with faults, made step by step through the real activities, whose rollouts then say what would harm a page that took it for markup. */
import { createHash } from 'node:crypto';
import type { TestContext } from 'node:test';
import type { PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import { candidateRows, gepaMetadata, type ToldCandidate } from '../../core/gepa/results.ts';
import type { ScoredGroup, ScoredRollout } from '../../core/rl/rollout/rollout.ts';
import { decodeRows, encodeJson, encodeRows, packRows } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import { beginLineage } from '../../runs/lineages/lineages.ts';
import { appendMetrics, readMetrics } from '../../runs/metrics/metrics.ts';
import { recordMissing } from '../../runs/metrics/record-metrics.ts';
import { indexRun, removeIndex } from '../../runs/rollout-index/write-index.ts';
import { advance, commitFirst, makeRun, openRoles, openTokenizer, type TestRun } from '../activities/runs.ts';

/** Texts of a model that must appear on the page exactly as they are. */
export const harmful = [
  '<img src=x onerror="document.title=\'taken\'">',
  '</script><script>document.title="taken"</script>',
  '"><svg onload=alert(1)>',
  '\u202etxet desrever',
] as const;

const steps = 6;

const prices = { 'cost.currency': 'EUR', 'cost.prompt': '1', 'cost.completion': '2', 'cost.trained': '4' };

export async function recordedRun(t: TestContext, name = 'recorded'): Promise<TestRun> {
  const test = await makeRun(t, prices, name);
  await test.store.put(layout.run(), Buffer.from(JSON.stringify({ schemaVersion: 1, name, spec: test.spec })));
  const roles = openRoles();
  let at = await commitFirst(test, roles);
  for (let step = 1; step <= steps; step++) at = await advance(test, roles, at);
  await recordMissing(test.run);
  await spoil(test);
  await reportFaults(test);
  await writeLogs(test);
  await removeIndex(test.run);
  for await (const _ of indexRun(test.run));
  return test;
}

/** Texts that control a terminal, turn the direction of writing, or are too long for any line. */
export const unruly = {
  steering: '\u001b[2J\u001b[31mred\u001b]0;title\u0007\u0000\u0008\r\u009b1A\u202eback\u2028',
  word: 'w'.repeat(3_000),
} as const;

const roleAdvantage = {
  'trainer.advantage.type': 'hierarchical_grpo',
  'trainer.advantage.episode_agents': '["proposer"]',
};

/** Each episode has two proposers and a judge, which is not trained, under one prompt; all that anybody says is unruly. */
export async function severalAgents(t: TestContext): Promise<TestRun> {
  const test = await makeRun(t, roleAdvantage, 'agents');
  await test.store.put(
    layout.run(),
    Buffer.from(JSON.stringify({ schemaVersion: 1, name: 'agents', spec: test.spec })),
  );
  const roles = openRoles();
  await advance(test, roles, await commitFirst(test, roles));
  const tokenizer = await openTokenizer();
  // Agents who were asked the same say something else.
  const endings = ['a', 'b', 'c'].map((letter) => tokenizer.encode(letter));
  for (const key of (await test.store.list(layout.rounds('main', 1))).filter((one) => layout.isScored(one))) {
    const groups = decodeRows<ScoredGroup>((await test.store.read(key))!, key);
    await test.store.put(
      key,
      await packRows(
        groups.map((group) => ({ ...group, rollouts: group.rollouts.map((rollout) => episodeOf(rollout, endings)) })),
      ),
    );
  }
  return test;
}

function episodeOf(rollout: ScoredRollout, endings: readonly (readonly number[])[]): ScoredRollout {
  const { index } = rollout;
  const [turn] = rollout.turns;
  if (!turn || rollout.reward === null) return rollout;
  const said = `${unruly.steering} ${unruly.word}`;
  const heard = [{ role: 'tool' as const, name: unruly.word, content: said }];
  const toolCalls = [{ name: unruly.word, arguments: said }];
  const metrics = { [unruly.word]: 1 };
  return {
    ...rollout,
    metrics,
    ...(index === 3 ? { outcome: 'infra_failure', reward: null, error: said } : {}),
    turns: endings.map((ending, trace) => ({
      ...turn,
      tokenIds: [...turn.tokenIds, ...ending],
      logprobs: [...turn.logprobs!, ...ending.map(() => -1)],
      text: said,
      trace,
      heard,
      toolCalls,
    })),
    traces: [
      { agent: 'proposer', isTrained: true, reward: index, metrics },
      { agent: 'proposer', isTrained: true, reward: -index, metrics },
      { agent: unruly.word, isTrained: false, reward: 0, metrics },
    ],
  } as ScoredRollout;
}

/**
 * Results of a branch's search: a start, a better child, a grandchild that is best at one example, and one merged of
 * two, with harmful text.
 */
export async function searched({ store, run, spec }: TestRun): Promise<void> {
  const candidate = (prompt: string, parents: number[], scores: (number | null)[]): ToldCandidate => ({
    prompt,
    texts: { system_prompt: prompt },
    sha256: createHash('sha256').update(prompt).digest('hex'),
    parents,
    scores,
    callsBefore: 4 * parents.length,
  });
  const candidates = [
    candidate('Reverse the text.\nAnswer alone.', [], [0, 0.5, 0.25]),
    candidate('Reverse the text, letter by letter.\nAnswer alone.', [0], [0.5, 0.5, 0.5]),
    candidate(`Reverse the text ${harmful[0]}\nAnswer alone.`, [1], [0.25, 0.75, null]),
    candidate('Reverse the text, letter by letter.\nCheck it.\nAnswer alone.', [1, 2], [0.75, 0.75, 0.5]),
  ];
  const place = layout.promptBranch('main', 'reverse-text', run.name, [4]);
  const [environment] = spec.environments;
  const input = {
    environments: [environment],
    model: { kind: 'version', model: run.name },
    reflection: { model: 'a-bigger-model' },
    numTrain: 8,
    numVal: 3,
    maxCalls: 60,
    minibatchSize: 3,
    perfectScore: null,
    stateColumns: [],
    seed: 0,
    isClassic: false,
  } as unknown as PromptSearchInput;
  const found = { candidates, best: 3, calls: 44, reflections: 3, stopReason: 'budget', comparison: null, seconds: 9 };
  await store.put(`${place}results.jsonl`, encodeRows(candidateRows(candidates, 3)));
  const metadata = gepaMetadata({ input, ...found, completedAt: '2026-11-26T10:00:50Z' });
  await store.put(`${place}metadata.json`, encodeJson(metadata));
  const trial = { version: 'v5', examples: 16, before: 0.25, after: 0.5 };
  await store.put(`${place}trial.json`, encodeJson(trial));
}

/** Rewound to step 4, in a lineage of its own. */
export async function rewound(test: TestRun): Promise<void> {
  await beginLineage({ run: test.run, step: 4, request: 'a test' });
}

/** The newest step's first groups: conversations with reasoning and tools, failures, and harm. */
async function spoil({ store, run }: TestRun): Promise<void> {
  const keys = (await store.list(layout.rounds(run.lineage, steps))).filter((key) => layout.isScored(key));
  for (const key of keys) {
    const groups = decodeRows<ScoredGroup>((await store.read(key))!, key);
    const spoiled = groups.map((group, i) => ({
      ...group,
      rollouts: group.rollouts.map((rollout, j) => (i > 0 ? rollout : spoiledRollout(rollout, j))),
    }));
    await store.put(key, await packRows(spoiled));
  }
}

function spoiledRollout(rollout: ScoredRollout, j: number): ScoredRollout {
  const [turn] = rollout.turns;
  if (!turn) return rollout;
  const said = `<think>Let me see: ${harmful[1]}</think>${harmful[j % harmful.length]}`;
  const turns = [
    { ...turn, text: said, toolCalls: [{ name: 'search', arguments: `{"q": "${harmful[0]}"}` }] },
    {
      ...turn,
      policyStepEnd: turn.policyStep + 1,
      heard: [{ role: 'tool' as const, name: 'search', content: `found: ${harmful[2]}` }],
    },
  ];
  if (j === 3) return { ...rollout, turns, outcome: 'infra_failure', reward: null, error: `Traceback\n${harmful[0]}` };
  return { ...rollout, turns };
}

async function reportFaults({ store }: TestRun): Promise<void> {
  const rows = await readMetrics(store);
  await store.removeAll(layout.metrics());
  const faults = { 'recovery/count': 1, 'lost/rollouts': 3, 'lost/tokens': 40, 'lost/seconds': 2.5 };
  for (const row of rows)
    await store.append(layout.metrics(), `${JSON.stringify(row.step === 3 ? { ...row, ...faults } : row)}\n`);
  await appendMetrics(store, { step: 4, lineage: 'main', 'eval/reverse-text/reward/mean': 0.4 });
}

async function writeLogs({ store }: TestRun): Promise<void> {
  const begin = Date.parse('2026-11-26T10:00:00Z');
  const line = (seconds: number, text: string): string => `${new Date(begin + seconds * 1000).toISOString()} ${text}\n`;
  const logs = { orchestrator: '', rollout: '', train: '' };
  const stepIn = (step: number): string => `step ${step}${step === 5 ? ' (attempt 2)' : ''}`;
  for (let step = 1; step <= steps; step++) {
    const at = step * 10;
    logs.orchestrator += line(at, `leaseGroups step ${step}, v${step - 1}: done in 0.05 s`);
    logs.rollout += line(at, `playGroups step ${step}, chunk 1/1: starts`);
    if (step === 3) {
      logs.rollout += line(at + 2, `playGroups step 3, chunk 1/1: failed: Error: ${harmful[0]}\n    at play (a.ts:1)`);
      logs.rollout += line(at + 2.5, 'playGroups step 3, chunk 1/1 (attempt 2): starts');
      logs.rollout += line(at + 5, 'playGroups step 3, chunk 1/1 (attempt 2): done in 2.50 s');
    } else logs.rollout += line(at + 4, `playGroups step ${step}, chunk 1/1: done in 4.00 s`);
    logs.train +=
      // The process that began step 5 was killed; another one went on.
      (step === 5 ? line(at + 4, 'trainBatch step 5: starts') : '') +
      line(at + 5, `trainBatch ${stepIn(step)}: starts`) +
      line(at + 8, `trainBatch ${stepIn(step)}: done in 3.00 s`);
    logs.orchestrator += line(at + 9, `broadcastWeights v${step}: starts`);
    logs.orchestrator += line(at + 9.5, `broadcastWeights v${step}: done in 0.50 s`);
  }
  logs.train += line(steps * 10 + 12, 'trainBatch step 7: starts');
  for (const [role, text] of Object.entries(logs)) await store.append(layout.log(1, role), text);
}

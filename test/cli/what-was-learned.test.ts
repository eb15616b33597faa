/** The closing report covers a run from its first step and evaluation, and says `learned` only when it is true. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { pathToFileURL } from 'node:url';
import { startClock } from '../../cli/output/clock.ts';
import { describeFigures } from '../../cli/describe/figures.ts';
import { describe as describeStatus, type StatusReport } from '../../cli/describe/status.ts';
import { joinedCurves } from '../../cli/follow/joined-curves.ts';
import { sinksOf } from '../../cli/stored/metrics-sinks.ts';
import { storedEvents } from '../../cli/stored/stored-events.ts';
import { whatWasLearned } from '../../cli/follow/what-was-learned.ts';
import { judgeChange } from '../../core/eval/held-out-change.ts';
import { evalsKept, trendKept } from '../../core/limits.ts';
import { randomStream } from '../../core/random.ts';
import { curvesOf, rememberedOf } from '../../runs/metrics/curves.ts';
import { layout } from '../../runs/layout.ts';
import { type RunPlace, storeOf } from '../../runs/run-access.ts';
import { specOf } from '../activities/runs.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';

type Rewards = readonly number[];

interface Evaluated {
  readonly step: number;
  readonly environment?: string;
  readonly sampled: Rewards;
  readonly greedy: Rewards;
  /** Answers to each example, of both variants. */
  readonly says?: readonly string[];
  readonly hasRows?: boolean;
}

async function storedRun(
  t: TestContext,
  steps: readonly number[],
  evaluations: readonly Evaluated[],
): Promise<RunPlace> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-learned-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const run = { name: 'words', store: pathToFileURL(`${folder}/`).href };
  const store = storeOf(run);
  await store.put(layout.run(), Buffer.from(JSON.stringify({ schemaVersion: 1, name: run.name, spec: specOf() })));
  const rows = [
    ...steps.map((reward, i) => ({ step: i + 1, lineage: 'main', 'train/reward': reward, 'time/step': 1 })),
    ...evaluations.map(({ step, environment = 'reverse-text', sampled, greedy }) => ({
      step,
      lineage: 'main',
      [`eval/${environment}/policy_version`]: step,
      [`eval/${environment}/reward/mean`]: mean(sampled),
      [`eval/${environment}/greedy/reward/mean`]: mean(greedy),
    })),
  ];
  await store.append(layout.metrics(), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  for (const { step, environment = 'reverse-text', sampled, greedy, says, hasRows = true } of evaluations) {
    if (!hasRows) continue;
    for (const [variant, rewards] of [
      ['', sampled],
      ['greedy', greedy],
    ] as const) {
      const lines = rewards.map((reward, i) => ({
        example_id: i,
        prompt: [
          { role: 'system', content: `as of v${step}` },
          { role: 'user', content: `word ${i}` },
        ],
        completion: [{ role: 'assistant', content: says?.[i] ?? `v${step} says ${i}` }],
        answer: 'x',
        reward,
      }));
      await store.put(
        `${layout.evaluation('main', environment, run.name, step, { variant })}results.jsonl`,
        Buffer.from(lines.map((line) => `${JSON.stringify(line)}\n`).join('')),
      );
    }
  }
  return run;
}

function mean(values: Rewards): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

const all = (reward: number, count = 40): Rewards => Array.from({ length: count }, () => reward);
const textsOf = async (run: RunPlace): Promise<string[]> => (await whatWasLearned(run)).map(({ text }) => text);

describe('the closing report', () => {
  test('begins with v0 and step 1, however many steps and evaluations came since', async (t) => {
    const steps = Array.from({ length: 90 }, (_, i) => 0.3 + i / 200);
    const evaluations = Array.from({ length: 31 }, (_, i) => {
      return { step: 3 * i, sampled: all(0.2 + i / 100), greedy: all(0.25 + i / 100) };
    });
    const said = await textsOf(await storedRun(t, steps, evaluations));
    assert.match(
      said[0]!,
      /^learned reverse-text, held out, v0 → v90: reward 0\.200 → 0\.500, greedy 0\.250 → 0\.550$/,
    );
    assert.ok(
      said.some((line) => /^curve {3}▁\S*█ {2}held out, v0 0\.200 … v90 0\.500$/.test(line)),
      said.join('\n'),
    );
    assert.ok(
      said.some((line) => / {8}▁\S*█ {2}batches, step 1 0\.300 … step 90 0\.745$/.test(line)),
      said.join('\n'),
    );
  });

  test('says that the reward fell where it fell', async (t) => {
    const said = await textsOf(
      await storedRun(
        t,
        [0.3, 0.2],
        [
          { step: 0, sampled: all(0.252), greedy: all(0.3) },
          { step: 2, sampled: all(0.165), greedy: all(0.2) },
        ],
      ),
    );
    assert.match(said[0]!, /^fell {4}reverse-text, .*: reward fell 0\.252 → 0\.165, greedy fell 0\.300 → 0\.200$/);
    assert.ok(!said.join('\n').includes('learned'));
  });

  test('is of two minds where sampled answers rose and greedy ones fell', async (t) => {
    const said = await textsOf(
      await storedRun(
        t,
        [0.3, 0.4],
        [
          { step: 0, sampled: all(0.221), greedy: all(0.408) },
          { step: 66, sampled: all(0.369), greedy: all(0.356) },
        ],
      ),
    );
    assert.match(
      said[0]!,
      /^mixed {3}.*reward 0\.221 → 0\.369, greedy fell 0\.408 → 0\.356: one rose, the other fell$/,
    );
  });

  test('calls nothing learned that may be chance, that has too few examples, or whose rows are gone', async (t) => {
    const noisy = (shift: number): Rewards => Array.from({ length: 40 }, (_, i) => ((i * 7 + shift) % 10) / 10);
    const first = async (before: Partial<Evaluated>, after: Partial<Evaluated>): Promise<string> => {
      const usual = { sampled: all(0.2), greedy: all(0.2) };
      const ends = [
        { step: 0, ...usual, ...before },
        { step: 9, ...usual, ...after },
      ];
      return (await textsOf(await storedRun(t, [0.3, 0.4], ends)))[0]!;
    };
    const chance = { sampled: noisy(3), greedy: noisy(3) };
    assert.match(
      await first({ sampled: noisy(0), greedy: noisy(0) }, chance),
      /^evals .*: no difference beyond chance$/,
    );
    const few = { sampled: all(0.9, 4), greedy: all(0.9, 4) };
    const fewBefore = { sampled: all(0.2, 4), greedy: all(0.2, 4) };
    assert.match(await first(fewBefore, few), /^evals .*: too few examples to tell from chance$/);
    assert.match(
      await first({ hasRows: false }, { sampled: all(0.9) }),
      /^evals .*\(their rows are not stored: this may be chance\)$/,
    );
  });

  test('of an unchanging model it is right in 98 of 100 runs', () => {
    const random = randomStream('unchanging', 1);
    const judged = Array.from({ length: 300 }, (_, run) =>
      judgeChange(
        Array.from({ length: 64 }, () => Number(random() < 0.4) - Number(random() < 0.4)),
        ['unchanging', run],
      ),
    );
    assert.ok(judged.filter((one) => one !== 'no difference beyond chance').length <= 6, judged.join());
  });

  test('shows answers that changed, says how many did and for the better, and which kind they are', async (t) => {
    const before = Array.from({ length: 20 }, (_, i) => (i < 15 ? `same ${i}` : `old ${i}`));
    const after = before.map((text) => text.replace('old', 'new'));
    const better = Array.from({ length: 20 }, (_, i) => (i === 15 || i === 16 ? 1 : i === 17 ? 0 : 0.5));
    const said = await textsOf(
      await storedRun(
        t,
        [0.3, 0.4],
        [
          { step: 0, sampled: all(0.5, 20), greedy: all(0.5, 20), says: before },
          { step: 9, sampled: all(0.5, 20), greedy: better, says: after },
        ],
      ),
    );
    assert.equal(said[1], '        greedy answers: 5 of 20 changed, 2 for the better, 1 for the worse');
    assert.equal(said[2], '        "word 15"  before: "old 15"  after: "new 15"');
    assert.equal(said.filter((line) => line.includes('before:')).length, 3);
  });

  test('leaves a falling curve of batches out below learned', async (t) => {
    const said = await textsOf(
      await storedRun(
        t,
        [0.34, 0.3, 0.26],
        [
          { step: 0, sampled: all(0.3), greedy: all(0.3) },
          { step: 3, sampled: all(0.5), greedy: all(0.5) },
        ],
      ),
    );
    assert.match(said[0]!, /^learned/);
    assert.ok(!said.join('\n').includes('batches'), said.join('\n'));
    assert.ok(said.some((line) => line.startsWith('curve   ')));
  });

  test('judges each environment', async (t) => {
    const said = await textsOf(
      await storedRun(
        t,
        [0.3, 0.4],
        [
          { step: 0, environment: 'short', sampled: all(0.3), greedy: all(0.3) },
          { step: 0, environment: 'long', sampled: all(0.5), greedy: all(0.5) },
          { step: 3, environment: 'short', sampled: all(0.5), greedy: all(0.5) },
          { step: 3, environment: 'long', sampled: all(0.3), greedy: all(0.3) },
        ],
      ),
    );
    assert.ok(said.some((line) => line.startsWith('learned short')));
    assert.ok(said.some((line) => line.startsWith('fell    long')));
  });

  test('its figure is bold on a terminal with colors, and nowhere else', () => {
    const written = (hasColor: boolean): string => {
      const lines: string[] = [];
      startClock(
        (text) => void lines.push(text),
        () => 80,
        hasColor,
      ).say('learned words: reward 0.2 → 0.5', '0.2 → 0.5');
      return lines.join('');
    };
    assert.ok(written(true).includes('\u001b[1m0.2 → 0.5\u001b[22m'));
    assert.ok(!written(false).includes('\u001b'));
  });
});

describe('what else is told from the store', () => {
  test('the events and the status of a stored run have every evaluation, from v0 on', async (t) => {
    const evaluations = Array.from({ length: 31 }, (_, i) => ({
      step: 3 * i,
      sampled: all(0.2, 2),
      greedy: all(i === 0 ? 0.45 : 0.2, 2),
    }));
    const run = await storedRun(
      t,
      Array.from({ length: 90 }, () => 0.5),
      evaluations,
    );
    const evals = (await storedEvents(run)).filter(({ kind }) => kind === 'eval');
    assert.deepEqual([evals.length, evals[0]!.step], [31, 0]);
    const curves = await curvesOf({ ...run, lineage: 'main' }, Infinity);
    assert.match(
      describeFigures({ step: 90, maxSteps: 90, ...curves }, false).join('\n'),
      /reverse-text: v0 0\.200 · … .*\(greedy 0\.450 → 0\.200\)/,
    );
  });

  test('the status of a running run begins with its first evaluation, which the run itself does not remember', async (t) => {
    const evaluations = Array.from({ length: 31 }, (_, i) => {
      return { step: 3 * i, sampled: all(i === 0 ? 0.125 : 0.5, 2), greedy: all(0.2, 2) };
    });
    const run = await storedRun(
      t,
      Array.from({ length: 90 }, () => 0.5),
      evaluations,
    );
    const stored = await curvesOf({ ...run, lineage: 'main' }, Infinity);
    const status = {
      ...rememberedOf(stored),
      run: run.name,
      phase: 'training',
      step: 90,
      maxSteps: 100,
      waitingOn: [],
      regressions: {},
      prompts: [],
      latest: {},
      progress: { collecting: null, inPlay: [], training: null },
    } as unknown as RunStatus;
    const { curves } = await sinksOf(run.name, run.store);
    const untold = { retries: [], branches: {}, otherVersions: [], sinks: {}, notices: [], damagedNotices: [] };
    const report = { ...untold, run: run.name, workflow: 'running', status, curves } as unknown as StatusReport;
    assert.match((await describeStatus(report)).join('\n'), /^evals +reverse-text: v0 0\.125 · … · v84 0\.500/m);
  });

  test('what a run remembers is bounded, and stands behind what is stored', async (t) => {
    const run = await storedRun(
      t,
      Array.from({ length: 90 }, (_, i) => i / 100),
      [{ step: 0, sampled: all(0.2, 2), greedy: all(0.2, 2) }],
    );
    const stored = await curvesOf({ ...run, lineage: 'main' }, Infinity);
    const remembered = rememberedOf(stored);
    assert.deepEqual([stored.trend.length, remembered.trend.length], [90, trendKept]);
    assert.ok(remembered.evals.length <= evalsKept);
    const later = { trend: [...remembered.trend, [91, 0.99, null, 1] as const], evals: remembered.evals };
    const joined = joinedCurves(stored, later);
    assert.deepEqual([joined.trend.length, joined.trend[0]![0], joined.trend.at(-1)![0]], [91, 1, 91]);
    assert.equal(joined.evals.length, 1);
  });
});

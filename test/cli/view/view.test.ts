/** The live view of a run without a terminal: the model, and the rows drawn from it. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { chooseTelling, looksOf } from '../../../cli/follow/audience.ts';
import { type RunSnapshot, troubleOf } from '../../../cli/follow/follow-run.ts';
import type { PendingActivity } from '../../../cli/temporal/pending-work.ts';
import { frame, type FrameInput } from '../../../cli/view/frame.ts';
import { afterKey, home, type ViewPosition } from '../../../cli/view/keys.ts';
import { folded, type Line, sparkline, widthOf, written } from '../../../cli/view/lines.ts';
import type { ShownGroup } from '../../../cli/view/stored-rollouts.ts';
import { viewModel } from '../../../cli/view/view-model.ts';
import { shortModelName } from '../../../core/names.ts';
import type { RunEvent, RunStatus } from '../../../workflows/control/messages.ts';

const nowMs = Date.parse('2026-11-21T12:10:00Z');

const status: RunStatus = {
  run: 'words',
  lineage: 'main',
  phase: 'training',
  step: 37,
  maxSteps: 100,
  pausedBecause: null,
  waitingOn: [{ what: 'score step 38: 8 groups × 16 from v36', since: '2026-11-21T12:09:52Z' }],
  policyDigest: 'abc',
  policy: 'v37',
  learningRate: 1e-3,
  store: 'file:///runs/words/',
  storeUri: 'file:///runs/',
  warnings: [],
  model: 'preset:reverse-text-0.2m',
  environments: ['reverse-text'],
  attempt: 2,
  since: '2026-11-21T12:00:00Z',
  lost: { recoveries: 1, rollouts: 17, tokens: 90, seconds: 41 },
  progress: {
    collecting: {
      step: 39,
      round: 2,
      doing: 'generate',
      policyStep: 37,
      rollouts: { done: 97, of: 128 },
      needed: 16,
      kept: 11,
      dropped: { 'filtered:too_easy': 3, 'filtered:too_hard': 1, 'failed:timeout': 1, 'failed:oom': 1 },
    },
    inPlay: [{ environment: 'reverse-text', groups: 31, since: '2026-11-21T12:09:30Z', policyStep: 36 }],
    training: { step: 38, from: 'v37', rows: 128, since: '2026-11-21T12:09:57Z' },
  },
  latest: {
    reward: 0.612,
    rollouts: 512,
    failed_rollouts: 3,
    policy_failures: 1,
    kl: 0.0041,
    'off_policy/mean': 0.8,
    'off_policy/max': 2,
    learning_rate: 9e-4,
    train_s: 6,
  },
  regressions: {},
  prompts: [],
  trend: [
    [35, 0.5, 0.1, 20],
    [36, 0.55, 0.2, 20],
    [37, 0.612, 0.3, 20],
  ],
  evals: [{ step: 30, environment: 'reverse-text', reward: 0.6, exact: 0.25, greedyReward: 0.7, greedyExact: 0.3 }],
};

const activity = (name: string, change: Partial<PendingActivity> = {}): PendingActivity => ({
  name,
  attempt: 1,
  nextAt: null,
  lastFailure: null,
  done: null,
  ...change,
});

const look = (change: Partial<RunStatus> = {}, rest: Partial<RunSnapshot> = {}): RunSnapshot => ({
  is: 'answer',
  status: { ...status, ...change },
  pending: [],
  ...rest,
});

const groups: ShownGroup[] = [
  {
    ordinal: 7,
    environment: 'reverse-text',
    exampleId: 3,
    policyStep: 36,
    rollouts: [
      { index: 0, outcome: 'ok', reward: 1, error: null, turns: [{ prompt: 'Reverse: abc', completion: 'cba' }] },
      { index: 1, outcome: 'timeout', reward: null, error: 'too slow\u001b[31m', turns: [] },
    ],
  },
];

const size = { columns: 79, rows: 24 };

function rows(change: Partial<FrameInput> = {}, from: RunSnapshot = look()): string[] {
  const input: FrameInput = {
    model: viewModel(from, nowMs),
    run: 'words',
    place: home,
    groups,
    groupsStep: 36,
    storeProblem: null,
    evals: status.evals,
    faults: [],
    leaving: 'detach',
    ...size,
    ...change,
  };
  return frame(input).map((line) => written(line, input.columns, { hasColor: false, hasUnicode: true }));
}

describe('what the view says of a run', () => {
  test('run, lineage, attempt and what was lost; step, elapsed time and the time to the end', () => {
    const [, title, step] = rows({ columns: 159 });
    assert.match(
      title!,
      /^ ratchet words · attempt 2 · lineage main · reverse-text · reverse-text-0\.2m · 1 recovery, 41s, 17 rollouts lost {3}● training$/,
    );
    assert.match(step!, /^ step {2}37\/100 █+░+ 37% {2}10m00s {2}eta 21m00s$/);
  });

  test('curves with their last values, the evaluation with the version it is of', () => {
    const line = rows().find((row) => row.includes('reward 0.612'))!;
    assert.match(line, /reward 0\.612 ▁▄█ .* exact 0\.300 ▁▅█ .* eval 0\.250 v30 ▄/);
  });

  test('the model has its name, wherever its files are', () => {
    const models = {
      '/home/a/.cache/ratchet/models/packaged--smollm2-135m-instruct--b179c952': 'smollm2-135m-instruct',
      '/home/a/.cache/huggingface/hub/models--Qwen--Qwen3-4B/snapshots/0123456789012345678901234567890123456789':
        'Qwen/Qwen3-4B',
      '../models/mine/': 'mine',
      'preset:reverse-text-0.2m': 'reverse-text-0.2m',
      'Qwen/Qwen3-4B': 'Qwen/Qwen3-4B',
    };
    for (const [model, name] of Object.entries(models)) {
      assert.equal(shortModelName(model), name);
      assert.ok(
        rows({ columns: 159 }, look({ model })).some((row) => row.includes(` · ${name}`)),
        name,
      );
    }
  });

  test('bars: how many groups of a batch are kept, and the training of the step before', () => {
    const { bars } = viewModel(look({}, { pending: [activity('playGroups', { done: 31 })] }), nowMs)!;
    const shown = bars.map(({ name, share, note }) => [name, share, note]);
    assert.deepEqual(shown, [
      ['groups', 11 / 16, 'kept 11/16 for step 39, 2nd round · 3 easy · 1 hard · 2 failed · 128 rollouts played'],
      ['train', 0.5, 'v38 3.0s, last 6.0s'],
    ]);
  });

  test('rollouts that running chunks say they have finished count as well as those of finished chunks, and never beyond all', () => {
    const collecting = { ...status.progress.collecting!, doing: 'generate' as const, rollouts: { done: 64, of: 128 } };
    const played = (done: number): string => {
      const pending = [activity('playGroups', { done }), activity('saveCheckpoint', { done: 500 })];
      return viewModel(look({ progress: { collecting, inPlay: [], training: null } }, { pending }), nowMs)!.bars[0]!
        .note;
    };
    assert.match(played(30), /· 94 rollouts played$/);
    assert.match(played(100), /· 128 rollouts played$/);
  });

  test('a bar compares with a batch, whose size stays the same from round to round', () => {
    const bar = (round: number, kept: number, of: number) => {
      const collecting = { ...status.progress.collecting!, round, kept, needed: 80, rollouts: { done: of, of } };
      return viewModel(look({ progress: { collecting, inPlay: [], training: null } }), nowMs)!.bars[0]!;
    };
    const rounds = [bar(1, 10, 640), bar(3, 30, 1144), bar(4, 38, 1768)];
    assert.deepEqual(
      rounds.map(({ share }) => share),
      [10 / 80, 30 / 80, 38 / 80],
    );
    assert.match(rounds[2]!.note, /^kept 38\/80 for step 39, 4th round /);
    for (const { note } of rounds) assert.doesNotMatch(note, /\d\/(?!80)/);
  });

  test('an evaluation beside the step has a bar, of its sampled and its greedy rollouts together', () => {
    const part = {
      environment: 'reverse-text',
      model: 'words',
      phase: 'playing',
      failed: 0,
      avgReward: null,
      waitingOn: [],
      hasTrouble: false,
      warnings: [],
    };
    const evaluations = [
      { ...part, workflow: 'words.eval.reverse-text.l2.v30', done: 100, of: 512 },
      { ...part, workflow: 'words.eval.reverse-text.l2.v30.greedy', done: 28, of: 128 },
      { ...part, environment: 'long', workflow: 'words.eval.long.l2.v30', done: 0, of: null },
    ];
    const model = viewModel(look({}, { evaluations }), nowMs)!;
    assert.deepEqual(
      model.bars.slice(2).map(({ name, share, note }) => [name, share, note]),
      [
        ['eval', 0.2, '128/640 v30 reverse-text'],
        ['eval', null, 'v30 long'],
      ],
    );
    assert.match(
      rows({}, look({}, { evaluations })).join('\n'),
      /^ train .* eval +█+░+ 128\/640 v30 reverse-text *\n eval +░+ v30 long/m,
    );
  });

  test('policy version, off-policy, KL; errors are told apart by whose they are', () => {
    const text = rows().join('\n');
    assert.match(text, /^ policy v37 · off-policy 0\.8 mean 2 max · kl 0\.0041 · lr 9\.0e-4$/m);
    assert.match(text, /^ errors 0\.8%: infrastructure 3 · policy 1 · of 512 rollouts$/m);
    assert.match(text, /^ in play 31 groups: reverse-text 31, the oldest for \d+\.?\d*s from v36$/m);
  });

  test('what it waits for: since when, which attempt, what the last one failed with, and when it is tried again', () => {
    const pending = [activity('playGroups', { attempt: 2, lastFailure: 'judge 429', nextAt: '2026-11-21T12:10:08Z' })];
    const text = rows({ columns: 159 }, look({}, { pending })).join('\n');
    assert.match(text, /^ waiting on: playGroups is tried again \(attempt 2\), again in 8\.0s: judge 429$/m);
    assert.match(text, /^ {13}score step 38: 8 groups × 16 from v36 \(8\.0s\)$/m);
  });

  test('an orchestrator or a server that does not answer is what is waited for; what was known before stays', () => {
    const silent = rows({}, look({}, { is: 'silence' })).join('\n');
    assert.match(silent, /37\/100/);
    assert.match(silent, /waiting on: the orchestrator worker, which does not answer; nothing is lost/);
    assert.match(
      rows({}, look({}, { pending: null })).join('\n'),
      /waiting on: the Temporal server, which does not answer/,
    );
  });

  test('a paused run says why, in several rows where it is long, and that it waits for whoever resumes it', () => {
    const text = rows({}, look({ phase: 'paused', waitingOn: [], pausedBecause: 'breaker: 16 of 16\nfailed' })).join(
      '\n',
    );
    assert.match(text, /● paused/);
    assert.match(text, /^ paused: breaker: 16 of 16⏎failed$/m);
    assert.match(text, /^ waiting on: you: npx ratchet-rl resume words$/m);
    const long = rows({}, look({ phase: 'paused', pausedBecause: 'no disk left '.repeat(20) }));
    assert.equal(long.filter((row) => /no disk/.test(row)).length, 2);
  });

  test('a page of faults tells each whole, in several rows, and the steps that lost rollouts', () => {
    const event = (kind: RunEvent['kind'], text: string, values = {}): RunEvent => ({
      sequence: 1,
      time: '2026-11-21T12:09:00.000Z',
      kind,
      step: 37,
      text,
      values,
    });
    const faults = [event('recovery', 'frame '.repeat(30)), event('step', '', { failed_rollouts: 3, rollouts: 512 })];
    const text = rows({ faults, place: { ...home, page: 'faults' } }).join('\n');
    assert.match(text, /^ 12:09:00 step 37 failed {3}3 of 512 rollouts failed/m);
    assert.equal(text.match(/frame/g)?.length, 30);
  });

  test('before the first answer it says that it waits for the run to open', () => {
    assert.match(
      rows({}, { is: 'not open yet', status: null, pending: [] }).join('\n'),
      /words · waiting for the run to open/,
    );
  });

  test('before the first answer it names what blocks the run', () => {
    const pending = [activity('openRun', { attempt: 3, lastFailure: 'the store does not answer' })];
    const from: RunSnapshot = { is: 'silence', status: null, pending, stuck: 'its workflow code fails: TypeError' };
    assert.match(
      rows({ trouble: troubleOf(from) }, from).join(' '),
      /its workflow code fails: TypeError; openRun is tried again \(attempt 3\): the +store does not answer/,
    );
  });

  test('a sample rollout of the newest step, where the store is reached', () => {
    assert.match(rows({}, look({ step: 36 })).join('\n'), /^ sample v36 reward 1\.00 {2}Reverse: abc → cba$/m);
    assert.doesNotMatch(rows({ groups: null }).join('\n'), /sample/);
  });
});

describe('what fits on the terminal', () => {
  const paused = look({
    pausedBecause: 'no-signal '.repeat(50),
    waitingOn: Array.from({ length: 9 }, () => status.waitingOn[0]!),
  });
  for (const page of ['run', 'rollouts', 'evals', 'faults'] as const) {
    test(`the ${page} page is shorter than any terminal, and no row is wider`, () => {
      for (const columns of [1, 12, 39, 79, 159]) {
        for (const height of [2, 5, 9, 14, 24, 50]) {
          for (const rollout of [null, 0]) {
            const shown = rows({ columns, rows: height, place: { ...home, page, rollout } }, paused);
            assert.ok(shown.length < height, `${shown.length} rows of ${height}`);
            for (const row of shown) assert.ok(widthOf(row) <= columns, `${widthOf(row)} of ${columns}: ${row}`);
          }
        }
      }
    });
  }

  test('the way out and the progress are on the smallest screen', () => {
    const text = rows({ rows: 5 }, paused).join('\n');
    assert.match(text, /37\/100/);
    assert.match(text, /\[q\] detach/);
  });

  test('on 80 columns the bars say all they have to say of a run of hundreds of steps', () => {
    const collecting = { ...status.progress.collecting!, rollouts: { done: 512, of: 512 }, kept: 9, dropped: {} };
    const training = { ...status.progress.training!, step: 101, from: 'v100' };
    const shown = rows({}, look({ progress: { collecting, inPlay: [], training } })).filter((row) =>
      /^ (groups|train)/.test(row),
    );
    assert.equal(shown.length, 2);
    for (const row of shown) assert.doesNotMatch(row, /…/);
  });

  test('long text is folded at words, and what is two columns wide is counted so', () => {
    assert.deepEqual(folded('one two three', 8), ['one two', 'three']);
    assert.deepEqual(folded('漢字漢字漢字\n\u001b[31mx', 8), ['漢字漢字', '漢字', '�[31mx']);
    assert.deepEqual(folded('🚀🚀🚀🚀🚀', 8), ['🚀🚀🚀🚀', '🚀']);
    assert.deepEqual(folded('', 8), ['']);
  });

  test('letters that are two columns wide are counted as two', () => {
    const line: Line = [{ text: '漢字漢字' }];
    assert.equal(written(line, 8, { hasColor: false, hasUnicode: true }), '漢字漢字');
    assert.equal(widthOf(written(line, 5, { hasColor: false, hasUnicode: true })), 5);
  });

  test('without UTF-8 all of it is ASCII, without colour no escape sequence is written', () => {
    const shown = frame({ ...frameInput(), place: home }).map((line) =>
      written(line, 79, { hasColor: false, hasUnicode: false }),
    );
    // oxlint-disable-next-line no-control-regex -- that is what is looked for
    for (const row of shown) assert.match(row, /^[\x20-\x7e]*$/);
    assert.ok(written([{ text: 'x', style: 'red' }], 79, { hasColor: true, hasUnicode: true }).includes('\u001b[31mx'));
  });

  function frameInput(): FrameInput {
    return {
      model: viewModel(look(), nowMs),
      run: 'words',
      place: home,
      groups,
      groupsStep: 36,
      storeProblem: null,
      evals: [],
      faults: [],
      leaving: 'stop',
      ...size,
    };
  }
});

describe('the keys', () => {
  const choice = { groups: 3, rollouts: 2, lines: 25 };
  const press = (...names: string[]): ViewPosition | 'leave' | 'suspend' =>
    names.reduce<ViewPosition | 'leave' | 'suspend'>(
      (place, name) => (typeof place === 'string' ? place : afterKey(place, { name }, choice)),
      home,
    );

  test('r, e and f open a page, the same key or escape closes it', () => {
    assert.deepEqual(press('e'), { ...home, page: 'evals' });
    assert.deepEqual(press('e', 'f'), { ...home, page: 'faults' });
    assert.deepEqual(press('f', 'f'), home);
    assert.deepEqual(press('r', 'escape'), home);
  });

  test('j, k and enter go through groups and into one, and stop at the ends', () => {
    assert.deepEqual(press('r', 'j', 'j', 'j', 'j'), { ...home, page: 'rollouts', group: 2 });
    assert.deepEqual(press('r', 'k'), { ...home, page: 'rollouts' });
    assert.deepEqual(press('r', 'j', 'return', 'j', 'j'), { ...home, page: 'rollouts', group: 1, rollout: 1 });
    assert.deepEqual(press('r', 'j', 'return', 'escape'), { ...home, page: 'rollouts', group: 1 });
  });

  test('inside a rollout arrows and pages move its text, and stop at its ends; the next rollout begins at its top', () => {
    const opened = { ...home, page: 'rollouts' as const, rollout: 0 };
    assert.deepEqual(press('r', 'return', 'down', 'down', 'up'), { ...opened, scroll: 1 });
    assert.deepEqual(press('r', 'return', 'pagedown', 'pagedown', 'pagedown'), { ...opened, scroll: 24 });
    assert.deepEqual(press('r', 'return', 'pagedown', 'j'), { ...opened, rollout: 1 });
    assert.deepEqual(press('r', 'return', 'up'), opened);
  });

  test('a long answer can be read to its end, and the page names the step that its groups are of', () => {
    const answer = Array.from({ length: 80 }, (_, i) => `line-${i}`).join('\n');
    const turns = [{ prompt: 'p', completion: answer }];
    const long = [{ ...groups[0]!, rollouts: [{ index: 0, outcome: 'ok', reward: 1, error: null, turns }] }];
    const page = { ...home, page: 'rollouts' as const };
    assert.match(rows({ groups: long, place: page }).join('\n'), /groups of step 36/); // step 37 is committed, and not read yet
    const top = rows({ groups: long, place: { ...page, rollout: 0 } }).join('\n');
    assert.match(top, /line-0\n/);
    assert.match(top, /lines 1–\d+ of 81/);
    const end = rows({ groups: long, place: { ...page, rollout: 0, scroll: 80 } }).join('\n');
    assert.match(end, /line-79/);
  });

  test('q and Ctrl-C leave', () => {
    assert.equal(press('q'), 'leave');
    assert.equal(afterKey(home, { name: 'c', ctrl: true }, choice), 'leave');
    assert.deepEqual(afterKey(home, { name: 'c' }, choice), home);
  });

  test('inside a rollout there is what was asked and said, or what went wrong, without the signs of its making', () => {
    const place = { ...home, page: 'rollouts' as const, rollout: 0 };
    assert.match(rows({ place }).join('\n'), /group 7, rollout 1 of 2: reward 1\.000\n {3}Reverse: abc\n {3}→ cba/);
    const failed = rows({ place: { ...place, rollout: 1 } }).join('\n');
    assert.match(failed, /rollout 2 of 2: timeout\n {3}too slow�\[31m/);
  });
});

test('a curve is scaled from its least to its greatest value; where room is short a block is a mean; what was not measured is a gap', () => {
  assert.equal(sparkline([0, null, 0.5, 1], 10), '▁ ▅█');
  assert.equal(sparkline([2, 2], 10), '▄▄');
  assert.equal(sparkline([0, 0.2, 0.8, 1], 2), '▁█');
  assert.equal(sparkline([0, 1, 0, 1, null, null], 3), '▄▄ ');
  assert.equal(sparkline([1, 2], 0), '');
  assert.equal(sparkline([], 5), '');
});

test('a live view needs a terminal: a pipe, CI, TERM=dumb and --plain get lines, --json JSON', () => {
  const [terminal, pipe] = [{ isTTY: true }, {}];
  assert.equal(chooseTelling({}, {}, terminal), 'view');
  assert.equal(chooseTelling({}, {}, pipe), 'lines');
  assert.equal(chooseTelling({}, { CI: 'true' }, terminal), 'lines');
  assert.equal(chooseTelling({}, { CI: 'false' }, terminal), 'view');
  assert.equal(chooseTelling({}, { TERM: 'dumb' }, terminal), 'lines');
  assert.equal(chooseTelling({ plain: true }, {}, terminal), 'lines');
  assert.equal(chooseTelling({ json: true, plain: true }, {}, terminal), 'json');
});

test('NO_COLOR and a locale that is not UTF-8 are honoured', () => {
  assert.deepEqual(looksOf({ LANG: 'C.UTF-8', NO_COLOR: '1' }), { hasColor: false, hasUnicode: true, reflows: true });
  assert.deepEqual(looksOf({ LANG: 'en_US.UTF-8', LC_ALL: 'C' }), { hasColor: true, hasUnicode: false, reflows: true });
  assert.equal(looksOf({}).hasUnicode, false);
});

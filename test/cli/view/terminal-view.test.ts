/**
 * Output of the live view on a terminal: every event once in the scroll-back, whatever is drawn below and however it is
 * resized.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { TerminalView } from '../../../cli/view/terminal-view.ts';
import type { StoredRollouts } from '../../../cli/view/stored-rollouts.ts';
import type { Curves } from '../../../runs/metrics/curves.ts';
import type { RunEvent, RunStatus } from '../../../workflows/control/messages.ts';
import { SmallKeyboard, SmallTerminal } from './small-terminal.ts';

function statusAt(step: number): RunStatus {
  return {
    run: 'words',
    lineage: 'main',
    phase: 'training',
    step,
    maxSteps: 40,
    pausedBecause: null,
    waitingOn: Array.from({ length: step % 4 }, (_, i) => ({ what: `wait ${i}`, since: '2026-11-21T12:00:00Z' })),
    policyDigest: null,
    policy: `v${step}`,
    learningRate: 1e-3,
    store: 'file:///nowhere/words/',
    storeUri: 'file:///nowhere/',
    warnings: [],
    model: 'm',
    environments: ['e'],
    attempt: 1,
    since: '2026-11-21T12:00:00Z',
    lost: { recoveries: 0, rollouts: 0, tokens: 0, seconds: 0 },
    progress: { collecting: null, inPlay: [], training: null },
    latest: {},
    trend: step === 0 ? [] : [[step, 0.5, null, 1]],
    evals: [],
    regressions: {},
    prompts: [],
  };
}

function eventAt(step: number): RunEvent {
  const text = `step ${step} of 40 ${'reward and much more '.repeat(step % 7)}end of ${step}`;
  return { sequence: step, time: '2026-11-21T12:00:00Z', kind: 'step', step, text, values: {} };
}

function open(columns = 60, rows = 24, rollouts: StoredRollouts | null = null) {
  const terminal = new SmallTerminal(columns, rows);
  const keys = new SmallKeyboard();
  let isLeft = false;
  const view = new TerminalView({
    run: 'words',
    screen: terminal.screen,
    keyboard: keys.keyboard,
    shows: { hasColor: true, hasUnicode: true, reflows: true },
    leaving: 'detach',
    rollouts: () => rollouts,
    onLeave: () => (isLeft = true),
    asLine: (line) => `${line}\n`,
  });
  terminal.write('before the view\n');
  view.open();
  return { terminal, keys, view, isLeft: () => isLeft };
}

function isWhole(text: string, steps: number): void {
  const lines = text.split('\n');
  assert.equal(lines[0], 'before the view');
  const events = lines.filter((line) => /^step \d+ of 40 .*end of/.test(line));
  assert.deepEqual(
    events,
    Array.from({ length: steps }, (_, i) => eventAt(i + 1).text),
  );
}

test('forty events on a small terminal: all of them are whole in the scroll-back, above one picture of the run', () => {
  const { terminal, view } = open();
  for (let step = 1; step <= 40; step++) {
    view.snapshot({ is: 'answer', status: statusAt(step + 1), pending: [] }); // other waits: rows come and go
    view.event(eventAt(step));
    view.snapshot({ is: step % 5 === 0 ? 'silence' : 'answer', status: statusAt(step), pending: [] });
  }
  view.close();
  const text = terminal.text();
  isWhole(text, 40);
  assert.equal(text.match(/ratchet words/g)?.length, 1, text);
  assert.match(text.split('end of 40')[1]!, /40\/40/);
});

test('pages are opened and closed meanwhile: rows that come and go take nothing of the scroll-back with them', () => {
  const { terminal, keys, view } = open();
  for (let step = 1; step <= 40; step++) {
    keys.type(['f', 'e', 'r', 'escape', 'j'][step % 5]!);
    view.snapshot({ is: 'answer', status: statusAt(step + 1), pending: [] }); // other waits: rows come and go
    view.event(eventAt(step));
    view.snapshot({ is: 'answer', status: statusAt(step), pending: [] });
  }
  view.close();
  isWhole(terminal.text(), 40);
  assert.equal(terminal.text().match(/ratchet words/g)?.length, 1);
});

test('resized narrower, wider, lower and higher: no row of the run stays behind, no event is lost', () => {
  const { terminal, view } = open(80, 30);
  const sizes = [
    [50, 30],
    [33, 30],
    [120, 30],
    [120, 40],
    [80, 24],
    [60, 24],
  ] as const;
  for (let step = 1; step <= 40; step++) {
    const size = sizes[step / 5 - 1];
    view.snapshot({ is: 'answer', status: statusAt(step + 1), pending: [] }); // other waits: rows come and go
    view.event(eventAt(step));
    view.snapshot({ is: 'answer', status: statusAt(step), pending: [] });
    if (size) terminal.resize(size[0], size[1]);
  }
  view.close();
  isWhole(terminal.text(), 40);
  assert.equal(terminal.text().match(/ratchet words/g)?.length, 1, terminal.text());
});

test('left by Ctrl-C it says so; closed it gives the keyboard and the cursor back, and what is said then stands below', () => {
  const { terminal, keys, view, isLeft } = open();
  assert.deepEqual([keys.isRaw, terminal.isCursorShown], [true, false]);
  view.snapshot({ is: 'answer', status: statusAt(1), pending: [] });
  keys.type('c', true);
  assert.ok(isLeft());
  view.say('a line of ours');
  view.close();
  view.close();
  terminal.write('detached\n');
  assert.deepEqual([keys.isRaw, terminal.isCursorShown], [false, true]);
  assert.match(terminal.text(), /^before the view\na line of ours\n─+\n[^]*\ndetached$/);
});

test('a warning of Node is a line above the view, and not in the middle of it', async () => {
  const { terminal, view } = open();
  view.snapshot({ is: 'answer', status: statusAt(1), pending: [] });
  process.emitWarning('something leaks', 'SomeWarning');
  await new Promise(setImmediate);
  view.close();
  assert.match(terminal.text(), /^before the view\nSomeWarning: something leaks\n─/);
});

test('what an event says cannot move the cursor, clear the screen or turn the direction of writing', () => {
  const { terminal, view } = open();
  view.event({ ...eventAt(1), text: 'model says \u001b[2J\u001b[3J\r\u202e"x"' });
  view.snapshot({ is: 'answer', status: statusAt(1), pending: [] });
  view.close();
  assert.match(terminal.text(), /^before the view\nmodel says �\[2J�\[3J��"x"\n/);
});

test('who reads a page when the run ends reads on until they go back; on the first page nobody is waited for', async () => {
  const { keys, view, isLeft } = open();
  view.snapshot({ is: 'answer', status: statusAt(1), pending: [] });
  await view.untilRead(new AbortController().signal);
  keys.type('e');
  let isRead = false;
  const reading = view.untilRead(new AbortController().signal).then(() => (isRead = true));
  keys.type('down');
  await new Promise(setImmediate);
  assert.equal(isRead, false);
  keys.type('escape');
  await reading;
  assert.equal(isLeft(), false);
  view.close();
});

test('curves begin with the first step and v0, however late one attaches; a rewind begins them anew', async () => {
  const evalOf = (step: number, reward: number) => {
    return { step, environment: 'e', reward, exact: null, greedyReward: null, greedyExact: null };
  };
  const stored: Readonly<Record<string, Curves>> = {
    main: {
      trend: Array.from({ length: 100 }, (_, i) => [i + 1, i < 50 ? 0.1 : 0.9, null, 1] as const),
      evals: Array.from({ length: 10 }, (_, i) => evalOf(10 * i, i === 0 ? 0.125 : 0.5)),
    },
    l2: { trend: [[1, 0.2, null, 1]], evals: [evalOf(0, 0.25)] },
  };
  const rollouts = {
    curves: (lineage: string) => Promise.resolve(stored[lineage]!),
    ofStep: () => Promise.resolve([]),
  } as unknown as StoredRollouts;
  const { terminal, keys, view } = open(100, 60, rollouts);
  const remembered = { trend: stored['main']!.trend.slice(-60), evals: stored['main']!.evals.slice(-5) };
  view.snapshot({ is: 'answer', status: { ...statusAt(100), ...remembered }, pending: [] });
  await delay(0);
  view.snapshot({
    is: 'answer',
    status: { ...statusAt(101), ...remembered, trend: [[101, 0.95, null, 1]] },
    pending: [],
  });
  const half = '▁'.repeat(5);
  assert.match(terminal.text(), new RegExp(`reward 0\\.950 ${half}`));
  keys.type('e');
  assert.match(terminal.text(), /v0 +e +0\.125/);
  view.snapshot({ is: 'answer', status: { ...statusAt(1), lineage: 'l2' }, pending: [] });
  await delay(0);
  view.snapshot({ is: 'answer', status: { ...statusAt(1), lineage: 'l2' }, pending: [] });
  assert.match(terminal.text(), /v0 +e +0\.250/);
  assert.doesNotMatch(terminal.text(), /0\.125/);
  view.close();
});

/** A run that is watched: from a terminal that is resized and left, and by a program that reads NDJSON. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { followRun } from '../../cli/follow/follow-run.ts';
import { NdjsonLine } from '../../cli/output/ndjson.ts';
import { StoredRollouts } from '../../cli/view/stored-rollouts.ts';
import { TerminalView } from '../../cli/view/terminal-view.ts';
import { resolveStoreUri } from '../../store/index.ts';
import type { RunEvent } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { SmallKeyboard, SmallTerminal } from '../cli/view/small-terminal.ts';
import { RunningCommand, thisVersion } from '../faults/upgrade.ts';
import { openSmallProject, smallRun, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

let project: SmallProject;
before(async () => {
  project = await openSmallProject({ 'words.toml': smallRun.replace('max_steps = 12', 'max_steps = 200') });
});
after(() => project?.close());

function attach(...args: readonly string[]): RunningCommand {
  const environment = { ...process.env };
  delete environment['TEMPORAL_ADDRESS'];
  return new RunningCommand(thisVersion, ['attach', 'words', ...args], { folder: project.folder, environment });
}

test('the live view of a real run, resized and left by Ctrl-C: every event it told is whole above it, and the run continues', async () => {
  const handle = await project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'words',
    taskQueue: 'ratchet',
    args: ['words.toml'],
  });
  const [terminal, keys, left] = [new SmallTerminal(80, 24), new SmallKeyboard(), new AbortController()];
  const store = resolveStoreUri('file:outputs', project.folder);
  const view = new TerminalView({
    run: 'words',
    screen: terminal.screen,
    keyboard: keys.keyboard,
    shows: { hasColor: true, hasUnicode: true, reflows: true },
    leaving: 'detach',
    rollouts: () => new StoredRollouts({ name: 'words', store }),
    onLeave: () => left.abort(),
    asLine: (line) => `${line}\n`,
  });
  const told: RunEvent[] = [];
  view.open();
  const following = followRun({
    say: view.say,
    earlier: view.earlier,
    waiting: view.waiting,
    snapshot: view.snapshot,
    event(event) {
      told.push(event);
      view.event(event);
    },
    handle,
    isAttached: true,
    signal: left.signal,
  });
  await until('step 3', () => told.some(({ kind, step }) => kind === 'step' && step >= 3));
  terminal.resize(60, 24);
  keys.type('r');
  await until('a rollout in the view', () => /group \d+ +#\d+ +v\d+ +[01]\.\d\d/.test(terminal.text()));
  keys.type('c', true);
  await following;
  view.close();

  // A run that got further before the view was open first prints that.
  const lines = terminal
    .text()
    .split('\n')
    .filter((line, i) => i > 0 || !/^the last 5 of \d+ events so far:/.test(line));
  const events = told.map(({ text }) => text);
  assert.deepEqual(lines.slice(0, events.length), events);
  assert.match(lines.slice(events.length).join('\n'), /^─+\n ratchet words .*training\n step {2}\d+\/200 /);
  assert.ok(terminal.isCursorShown && !keys.isRaw);
  assert.equal((await handle.describe()).status.name, 'RUNNING');
});

test('ratchet attach --json prints lines of the documented schema and nothing else; plain it prints lines; both leave the run running', async () => {
  const [json, plain] = [attach('--json'), attach('--plain')];
  await until('a step in both', () => /"kind":"step"/.test(json.said) && / step \d+ of 200 /.test(plain.said));
  await delay(2_500); // for one more look
  await Promise.all([json.stop(), plain.stop()]);
  assert.deepEqual([await json.ended, await plain.ended], [0, 0]);
  assert.match(plain.said, /detached\. The run words continues; come back with: npx ratchet-rl attach words$/m);
  const lines = json.printed
    .trim()
    .split('\n')
    .map((line) => NdjsonLine.parse(JSON.parse(line)));
  assert.deepEqual([lines[0]?.type, lines.at(-1)?.type], ['started', 'end']);
  const events = lines.filter((line) => line.type === 'event');
  assert.deepEqual(
    events.map(({ sequence }) => sequence),
    events.map((_, i) => events[0]!.sequence + i),
  );
  const handle = project.client.workflow.getHandle('words');
  assert.equal((await handle.describe()).status.name, 'RUNNING');
  await handle.cancel();
});

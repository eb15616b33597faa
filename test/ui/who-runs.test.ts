/** The page distinguishes runs with workers from those that stand still, which their folders do not show. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { askForPage, type PageServer } from '../../cli/page/ask-for-page.ts';
import type { ListedRun } from '../../ui/answers.ts';
import { Folder } from '../../ui/folder.ts';
import type { ToldByRun } from '../../ui/overview.ts';
import { type AskRun, type ListRunning, RunSource } from '../../ui/run-source.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import { recordedRun } from './recorded-run.ts';

const telling = (phase: RunStatus['phase'], step = 6): ToldByRun => ({
  status: {
    run: 'recorded',
    phase,
    step,
    maxSteps: 12,
    pausedBecause: null,
    waitingOn: [],
    warnings: [],
    prompts: [],
    progress: { collecting: null, inPlay: [], training: null },
  } as unknown as RunStatus,
  events: [],
  temporalUrl: null,
});

test('a run that trains, evaluates at its end, or cannot be asked is not called finished or not running', async (t) => {
  const { run } = await recordedRun(t);
  const listed = async (ask: Awaited<ReturnType<AskRun>>, running: Awaited<ReturnType<ListRunning>>) => {
    const folder = new Folder({
      store: run.store,
      ask: () => Promise.resolve(ask),
      running: () => Promise.resolve(running),
    });
    const [one] = (await folder.answer('runs', new URLSearchParams())) as readonly ListedRun[];
    return one!.state;
  };
  const told = async (ask: Awaited<ReturnType<AskRun>>): Promise<string> => {
    const source = new RunSource(run, () => Promise.resolve(ask));
    await source.askRun();
    return (await source.overview()).state;
  };
  for (const [ask, state] of [
    [telling('training'), 'running'],
    [telling('finishing', 12), 'finishing'],
    ['silent', 'running, but its orchestrator does not answer'],
    ['no answer', 'not known: its Temporal server does not answer'],
    [null, 'not running'],
  ] as const) {
    assert.equal(await listed(ask, ['recorded']), state);
    assert.equal(await told(ask), state);
  }
  assert.equal(await listed(telling('training'), []), 'not running');
  assert.equal(await listed(null, 'no answer'), 'not known: its Temporal server does not answer');
});

test('a server that misses a question is not taken for none, and what the run said before stands', async () => {
  const answers: (ToldByRun | 'silent' | Error | null)[] = [telling('training'), new Error('deadline exceeded')];
  let reached = 0;
  const server: PageServer = {
    ask: () => {
      const answer = answers.shift() ?? new Error('deadline exceeded');
      return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
    },
    running: () => Promise.reject(new Error('deadline exceeded')),
    pools: () => Promise.reject(new Error('deadline exceeded')),
    close: () => Promise.resolve(),
  };
  const asker = askForPage('/nowhere', () => Promise.resolve((reached++, server)));
  const states = [await asker.ask('words'), await asker.ask('words'), await asker.ask('words')];
  for (const told of states) assert.equal((told as ToldByRun).status.phase, 'training');
  assert.equal(await asker.ask('another'), 'no answer');
  assert.equal(await asker.running(), 'no answer');
  assert.equal(await asker.pools(), 'no answer');
  assert.equal(reached, 1, 'it is looked for again after a while');
  await asker.close();
});

test('where there is no server the folder tells, and a server that cannot be reached is no answer', async () => {
  const nowhere = askForPage('/nowhere', () => Promise.resolve(null));
  assert.equal(await nowhere.ask('words'), null);
  assert.deepEqual(await nowhere.running(), []);
  assert.equal(await nowhere.pools(), null);
  const refused = askForPage('/nowhere', () => Promise.reject(new Error('connect ECONNREFUSED')));
  assert.equal(await refused.ask('words'), 'no answer');
  assert.equal(await refused.running(), 'no answer');
});

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { WorkflowNotFoundError } from '@temporalio/client';
import { openAudience } from '../../cli/follow/audience.ts';
import { temporalTrouble } from '../../workers/temporal/temporal-trouble.ts';
import { type RunWorkflow, watchRun } from '../../cli/follow/watch-run.ts';
import { RatchetError } from '../../core/errors.ts';
import { type Fakes, Gate } from '../workflows/fake-run.ts';
import { until } from '../workflows/look.ts';
import { begin, type BegunRun, closeServer } from '../workflows/server.ts';
import type { RunEvent } from '../../workflows/control/messages.ts';

after(closeServer);

/** Watches a run like a `train` that attached to it. */
function watch(run: BegunRun, startAnew?: () => Promise<RunWorkflow>) {
  const lines: string[] = [];
  const told: number[] = [];
  const audience = {
    ...openAudience('lines'),
    say: (line: string) => void lines.push(line),
    event: ({ sequence }: RunEvent) => void told.push(sequence),
  };
  const exitCode = watchRun(run.client.workflow.getHandle(run.name), {
    run: run.name,
    audience,
    stack: null,
    wasRunning: true,
    rollouts: () => null,
    known: null,
    ...(startAnew && { startAnew }),
    goOn: 'npx ratchet-rl train words.toml',
    goOnPlainly: 'npx ratchet-rl train words.toml',
    interrupted: new AbortController(),
    gone: new AbortController().signal,
  });
  return { lines, told, exitCode };
}

test('a run whose workflow is deleted while it is watched ends with the command that continues it', async () => {
  const gate = new Gate();
  const run = await begin({
    fakes: {
      playGroups: async (_, call) => {
        await gate.pass();
        return call.usual();
      },
    },
  });
  await run.atStep(0);
  const { client, name } = run;
  const { lines, exitCode } = watch(run);
  const { namespace } = client.options;
  await client.workflowService.deleteWorkflowExecution({ namespace, workflowExecution: { workflowId: name } });
  assert.equal(await exitCode, 1);
  assert.match(
    lines.at(-1) ?? '',
    /files are still there: npx ratchet-rl train words\.toml continues it$/,
    lines.join('\n'),
  );
  gate.open();
});

test('a run whose state is behind its store restarts by itself, once, if train was just typed', async () => {
  const behind = "Temporal's state of the run is behind its store";
  const fakes: Fakes = {
    trainBatch: (_, { nth, usual }) => {
      if (nth === 2 || nth === 3) throw new RatchetError('CommitConflict', behind);
      return usual();
    },
  };
  const run = await begin({ fakes });
  const startAnew = async () => (await begin({ fake: run.fake, fakes })).handle as RunWorkflow;
  const { lines, exitCode } = watch(run, startAnew);
  assert.equal(await exitCode, 1, lines.join('\n'));
  assert.equal(lines.filter((line) => line.includes('goes on from its newest commit')).length, 1);
  assert.equal(lines.filter((line) => line === `the run failed: ${behind}`).length, 1, 'and not again and again');
  const again = await begin({ fake: run.fake, fakes });
  const last = watch(again, startAnew);
  assert.equal(await last.exitCode, 0, last.lines.join('\n'));
});

test('of a run that goes on in another execution all events are told, also where it answers late', async () => {
  const gate = new Gate();
  const fakes: Fakes = {
    trainBatch: async ({ step }, { nth, usual }) => {
      if (nth === 1) throw new RatchetError('CommitConflict', 'behind');
      if (step === 8) await gate.pass();
      return usual();
    },
  };
  const run = await begin({ settings: { maxSteps: 8 }, fakes });
  const startAnew = async () => {
    watched.told.length = 0;
    const again = await begin({ fake: run.fake, fakes });
    await gate.reached;
    await until('more events than an attach shows', async () => (await again.events()).length > 5);
    return again.handle as RunWorkflow;
  };
  const watched = watch(run, startAnew);
  await until('its last event so far', () => watched.told.length > 5);
  gate.open();
  assert.equal(await watched.exitCode, 0, watched.lines.join('\n'));
  assert.deepEqual(
    watched.told,
    Array.from(watched.told, (_, i) => i + 1),
  );
});

test('every command that finds a workflow gone says so in a sentence', () => {
  const told = temporalTrouble(new WorkflowNotFoundError('workflow not found', 'words', undefined));
  assert.match((told as Error).message, /^This Temporal server does not know the workflow words \(any more\)/);
});

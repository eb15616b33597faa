import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { WorkflowNotFoundError } from '@temporalio/client';
import { openAudience } from '../../cli/audience.ts';
import { temporalTrouble } from '../../cli/temporal-trouble.ts';
import { type RunWorkflow, watchRun } from '../../cli/watch-run.ts';
import { Gate } from '../workflows/fake-run.ts';
import { begin, closeServer } from '../workflows/server.ts';

after(closeServer);

test('a run whose workflow is deleted while it is watched ends with what continues it', async () => {
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
  const lines: string[] = [];
  const watching = watchRun(client.workflow.getHandle(name) as RunWorkflow, {
    run: name,
    audience: { ...openAudience('lines'), say: (line) => void lines.push(line), event: () => undefined },
    stack: null,
    wasRunning: true,
    rollouts: () => null,
    known: null,
    goOn: 'npx ratchet train words.toml',
    goOnPlainly: 'npx ratchet train words.toml',
    interrupted: new AbortController(),
    gone: new AbortController().signal,
  });
  const { namespace } = client.options;
  await client.workflowService.deleteWorkflowExecution({ namespace, workflowExecution: { workflowId: name } });
  assert.equal(await watching, 1);
  assert.match(
    lines.at(-1) ?? '',
    /files are still there: npx ratchet train words\.toml continues it$/,
    lines.join('\n'),
  );
  gate.open();
});

test('any command that finds a workflow gone says so in a sentence', () => {
  const told = temporalTrouble(new WorkflowNotFoundError('workflow not found', 'words', undefined));
  assert.match((told as Error).message, /^This Temporal server does not know the workflow words \(any more\)/);
});

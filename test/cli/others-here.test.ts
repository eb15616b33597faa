import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Client } from '@temporalio/client';
import { defaultDataConverter } from '@temporalio/common';
import { memoKeys } from '../../core/names.ts';
import { connectionWith, type ListedAs } from '../stand-ins/listed-workflows.ts';
import { untilOthersEnd } from '../../cli/follow/others-here.ts';

const running = (workflowId: string, pausedBecause: string | null = null): ListedAs => ({
  workflowId,
  memo: { [memoKeys.asked]: { pausedBecause } },
});

/** Lists these runs, one look after the other; the last of them again and again. */
function clientThatLists(...looks: (readonly ListedAs[])[]): { client: Client; looked: () => number } {
  let looked = 0;
  const connection = connectionWith({
    list() {
      const seen = looks[Math.min(looked, looks.length - 1)]!;
      looked += 1;
      return seen;
    },
  });
  const options = { namespace: 'default', loadedDataConverter: defaultDataConverter };
  return { client: { connection, options } as unknown as Client, looked: () => looked };
}

const soon = { lookMs: 1, lastLinesMs: 1 };
const unleft = new AbortController().signal;

test('the processes of a run that has ended stay until the last other run that continues there has ended', async () => {
  const said: string[] = [];
  const both = [running('ours'), running('theirs'), running('third', 'asked to')];
  const { client, looked } = clientThatLists(both, both, [running('third', 'asked to')]);
  await untilOthersEnd(client, 'ours', { say: (line) => said.push(line) }, unleft, soon);
  assert.deepEqual(said, ['theirs: still running here. Ctrl-C ends that, too; nothing committed is lost']);
  assert.equal(looked(), 3, 'one that is paused is not waited for');
});

test('Ctrl-C ends the wait for other runs', { timeout: 5_000 }, async () => {
  const left = new AbortController();
  const { client } = clientThatLists([running('theirs')]);
  await untilOthersEnd(client, 'ours', { say: () => left.abort() }, left.signal);
});

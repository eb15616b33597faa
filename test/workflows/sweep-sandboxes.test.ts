/** The sweep of sandboxes, as a Temporal Schedule begins it: no run is needed. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { RatchetError } from '../../core/errors.ts';
import { scheduleSweeps } from '../../workers/temporal/sweep-schedule.ts';
import { failureOf, until } from './look.ts';
import { begin, closeServer } from './server.ts';

after(closeServer);

describe('a sweep of sandboxes', () => {
  const args = [{ store: 'file:///nowhere/' }];

  test('is one activity, whose findings are counted', async () => {
    const run = await begin({
      type: 'sweepSandboxes',
      args,
      fakes: {
        sweepSandboxes: () => ({
          open: 3,
          ended: [{ name: 'a', why: 'deadline' }],
          orphans: ['b'],
          left: ['c'],
          troubles: ['docker: nobody is there'],
          forgotten: ['host:1:2'],
        }),
      },
    });
    const swept = await run.handle.result();
    assert.deepEqual(swept, {
      open: 3,
      ended: 1,
      orphans: 1,
      left: ['c'],
      troubles: ['docker: nobody is there'],
      forgotten: 1,
    } as never);
    assert.deepEqual(run.inputs('sweepSandboxes'), args);
  });

  test('that cannot read the leases now is asked again; one that is refused ends', async () => {
    const away = await begin({
      type: 'sweepSandboxes',
      args,
      fakes: {
        sweepSandboxes: (_, { nth, usual }) => {
          if (nth === 1) throw new RatchetError('StoreUnavailable', 'the disk is away');
          return usual();
        },
      },
    });
    await away.handle.result();
    assert.equal(away.inputs('sweepSandboxes').length, 2);
    const refused = await begin({
      type: 'sweepSandboxes',
      args,
      fakes: {
        sweepSandboxes: () => {
          throw new RatchetError('ConfigInvalid', 'no such place');
        },
      },
    });
    assert.match(await failureOf(refused.handle.result()), /^ConfigInvalid: no such place/);
  });

  test('its schedule is made once, and begins it with its place', async () => {
    const { client, handle } = await begin({ type: 'sweepSandboxes', args });
    await handle.result();
    const store = `file:///nowhere/${process.pid}/`;
    const { id, isNew } = await scheduleSweeps(client, store);
    assert.equal(isNew, true);
    assert.deepEqual(await scheduleSweeps(client, store), { id, isNew: false });
    const schedule = client.schedule.getHandle(id);
    try {
      const { action, policies } = await schedule.describe();
      assert.ok(action.type === 'startWorkflow');
      assert.deepEqual([action.workflowType, action.args, policies.overlap], ['sweepSandboxes', [{ store }], 'SKIP']);
      await schedule.trigger();
      await until('its begin', async () => (await schedule.describe()).info.recentActions.length > 0);
    } finally {
      await schedule.delete();
    }
  });
});

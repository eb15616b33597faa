import assert from 'node:assert/strict';
import { test } from 'node:test';
import { msToTs } from '@temporalio/common/lib/time.js';
import {
  beCurrent,
  currentVersion,
  deploymentName,
  type DeploymentService,
  hasDeployments,
  makeCurrent,
} from '../../workers/temporal/worker-deployment.ts';

/** A server that knows versions, each since a second, and which of them is current. */
function server(createdAt: Readonly<Record<string, number>>, current = '') {
  // In seconds, as the server's clock gives them.
  const state = { current, chosenAt: createdAt[current] ?? 0, looks: 0 };
  const service = {
    listWorkerDeployments: async () => ({}),
    describeWorkerDeployment: async () => {
      state.looks += 1;
      return {
        workerDeploymentInfo: {
          routingConfig: {
            currentDeploymentVersion: state.current ? { buildId: state.current } : null,
            currentVersionChangedTime: msToTs(state.chosenAt * 1000),
          },
          versionSummaries: Object.entries(createdAt).map(([buildId, seconds]) => ({
            deploymentVersion: { deploymentName, buildId },
            createTime: msToTs(seconds * 1000),
          })),
        },
      };
    },
    setWorkerDeploymentCurrentVersion: async ({ buildId }: { buildId: string }) => {
      state.current = buildId;
      state.chosenAt = Math.max(...Object.values(createdAt)) + 1;
      return {};
    },
  } as unknown as DeploymentService;
  return { service, state, namespace: 'default' };
}

test('new runs begin under the version that came last, whichever orchestrator is started again', async () => {
  const first = server({ old: 1 });
  assert.equal(await beCurrent(first, 'old'), true);
  assert.equal(first.state.current, 'old');

  const upgraded = server({ old: 1, new: 2 }, 'old');
  assert.equal(await beCurrent(upgraded, 'new'), true);
  assert.equal(await beCurrent(upgraded, 'old'), false, 'an older one that is started again changes nothing');
  assert.equal(upgraded.state.current, 'new');
  assert.equal(await beCurrent(upgraded, 'new'), true, 'done twice it changes nothing');
});

test('a version that was gone back to stays current when orchestrators of the newer one are started again', async () => {
  const upgraded = server({ old: 1, new: 2 }, 'new');
  await makeCurrent(upgraded, 'old');
  assert.equal(await currentVersion(upgraded), 'old');
  assert.equal(await beCurrent(upgraded, 'new'), false);
  assert.equal(await beCurrent(upgraded, 'old'), true);
  assert.equal(upgraded.state.current, 'old');

  const again = server({ old: 1, new: 2, newest: 9 }, 'old');
  assert.equal(await beCurrent(again, 'newest'), true, 'a version that came after the choice is the next choice');
});

test('a version that the server does not know yet is looked for again, and given up when the worker ends', async () => {
  const { service, state, namespace } = server({});
  const ended = AbortSignal.abort();
  assert.equal(await beCurrent({ service, namespace }, 'new', { signal: ended }), false);
  assert.equal(state.looks, 1);
});

test('a server without worker deployments, or that lets us ask for none, pins nothing', async () => {
  const { service, namespace } = server({});
  assert.equal(await hasDeployments({ service, namespace }), true);
  const refused = { ...service, listWorkerDeployments: () => Promise.reject(new Error('12 UNIMPLEMENTED')) };
  assert.equal(await hasDeployments({ service: refused as unknown as DeploymentService, namespace }), false);
});

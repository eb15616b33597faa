import assert from 'node:assert/strict';
import { test } from 'node:test';
import { msToTs } from '@temporalio/common/lib/time.js';
import {
  beCurrent,
  deploymentName,
  type DeploymentService,
  hasDeployments,
} from '../../workers/temporal/worker-deployment.ts';

/** A server that knows versions, each since a second, and which of them is current. */
function server(createdAt: Readonly<Record<string, number>>, current = '') {
  const state = { current, looks: 0 };
  const service = {
    listWorkerDeployments: async () => ({}),
    describeWorkerDeployment: async () => {
      state.looks += 1;
      return {
        workerDeploymentInfo: {
          routingConfig: { currentDeploymentVersion: state.current ? { buildId: state.current } : null },
          versionSummaries: Object.entries(createdAt).map(([buildId, seconds]) => ({
            deploymentVersion: { deploymentName, buildId },
            createTime: msToTs(seconds * 1000),
          })),
        },
      };
    },
    setWorkerDeploymentCurrentVersion: async ({ buildId }: { buildId: string }) => {
      state.current = buildId;
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

import { RatchetError } from '../core/errors.ts';
import { requireFreeName } from './free-name.ts';
import { layout } from './layout.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { openRunStore, requireOwnFolder, type Store } from '../store/index.ts';
import { encodeStored } from './forms/stored-forms.ts';
import { claimIn } from './forms/record-shapes.ts';

export async function nextAttempt(store: Store): Promise<number> {
  const keys = await store.list(layout.allLogs());
  return 1 + Math.max(0, ...keys.map((key) => Number(/attempt_(\d+)\//.exec(key)?.[1] ?? 0)));
}

/** One workflow drives a run at a time. The claim of a workflow that has ended is taken over. */
export async function claimRun(
  spec: RunSpec,
  workflowId: string,
  isWorkflowRunning: (workflowId: string) => Promise<boolean>,
): Promise<void> {
  const store = openRunStore(spec.store.uri, spec.name);
  await requireOwnFolder({ store: spec.store.uri, name: spec.name });
  for (;;) {
    const claims = await store.list(layout.claims());
    if (claims.length === 0) requireFreeName(spec.name);
    const newest = claims.length > 0 ? await store.read(layout.claim(claims.length)) : null;
    const holder = newest && claimIn(newest, store.uri + layout.claim(claims.length)).workflowId;
    if (holder === workflowId) return;
    if (holder && (await isWorkflowRunning(holder))) {
      throw new RatchetError(
        'ConfigInvalid',
        `The run ${spec.name} is being driven by the workflow ${holder}, which is running. Look at that one (npx ratchet-rl status ${spec.name}), or give this one another name: --name NAME.`,
      );
    }
    const key = layout.claim(claims.length + 1);
    const { stored } = await store.putIfAbsent(key, encodeStored(key, { workflowId }));
    if (stored) return;
  }
}

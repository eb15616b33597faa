import { trustedRootsVariable } from '../../core/child-environment.ts';
import { storeOf, type RunPlace } from '../../runs/run-access.ts';
import { standOfRun } from '../../runs/lineages/standing.ts';
import { storedSpec } from '../../runs/forms/stored-spec.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { NoticePost } from '../../workers/metrics/post-notices.ts';

interface Posting {
  readonly say: (line: string) => void;
  /** Throws unless this user's secret may be used for the webhook in the run's folder. */
  readonly allow: (spec: RunSpec) => Promise<void>;
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
}

/**
 * Posts the last notices of an ended run to its webhook, since no worker does so any more. If the run will
 * continue, the metrics process posts them. The run may be another user's, so this folder must name the webhook, as for
 * workers.
 */
export async function postAfterEnd(
  place: RunPlace,
  { say, allow, environment = ofThisFolder() }: Posting,
): Promise<void> {
  const stand = await standOfRun(place);
  if (stand === null || stand.state === 'not running') return;
  const { spec } = await storedSpec(place);
  await allow(spec);
  const post = NoticePost.of(spec, storeOf(place), { log: say, environment });
  await post.advance();
  if (!post.isUpToDate) say('the webhook has not taken it: it is sent with the next note');
}

/** Only servers that this user granted in this folder. */
function ofThisFolder(): NodeJS.ProcessEnv {
  return { ...process.env, [trustedRootsVariable]: process.cwd() };
}

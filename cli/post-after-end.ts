import { trustedRootsVariable } from '../core/child-environment.ts';
import { storeOf, type RunPlace } from '../runs/run-access.ts';
import { standOfRun } from '../runs/standing.ts';
import { storedSpec } from '../runs/stored-spec.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { NoticePost } from '../workers/post-notices.ts';

interface Posting {
  readonly say: (line: string) => void;
  /** Throws unless this user's secret may be used as the run's folder says. */
  readonly allow: (spec: RunSpec) => Promise<void>;
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
}

/**
 * Sends what a run that has ended noticed, or was told, to its webhook: nobody else does any more. Of a run that is to go on, the process that
 * hands metrics on sends it. The run may be somebody else's, so its webhook has to be named in this folder, as workers ask it.
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

/** Only servers that this user granted in this folder may be asked. */
function ofThisFolder(): NodeJS.ProcessEnv {
  return { ...process.env, [trustedRootsVariable]: process.cwd() };
}

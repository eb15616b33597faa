import { formatPath, type KeyPath } from '../../toml/positions.ts';
import { type Table, tableOr, valueAt } from '../../toml/tables.ts';
import type { Own } from '../dialect.ts';
import { placesOf } from '../places.ts';
import { found } from './prime-rl-words.ts';

/** prime-rl's settings for sampling tokens and rendering messages. */

/** Variables of chat templates; prime-rl's typed renderers have them under the same names. */
const templateVariables: readonly string[] = ['enable_thinking', 'reasoning_effort', 'clear_thinking'];
/** Keys of `name = "default"` that are not passed to the template; all others are. */
const ofDefaultRenderer: readonly string[] = ['name', 'tool_parser', 'reasoning_parser', 'thinking_retention'];

export function setTemplate(written: Table, own: Own): void {
  const at: KeyPath = ['orchestrator', 'renderer'];
  const { name, ...said } = tableOr(valueAt(written, at));
  const isVariable = (key: string): boolean =>
    name === 'default' ? !ofDefaultRenderer.includes(key) : templateVariables.includes(key);
  const without = Object.keys(said).filter((key) => !isVariable(key));
  for (const [key, value] of Object.entries(said)) {
    const ours = ['sampling', 'chat_template_kwargs', key];
    if (isVariable(key) && value !== null && own.get(ours) === undefined) own.set(ours, value, [...at, key]);
  }
  if (without.length === 0) return;
  own.warn(
    `${formatPath(at)}: ${without.join(', ')} ${without.length === 1 ? 'has' : 'have'} no effect here: messages are written out with the model’s chat template.`,
  );
}

/** prime-rl's top_k beside top_p, which bounds the tokens that can be sampled (TRAIN_TOP_K_BOUND). */
const topKBesideTopP = 512;

/** prime-rl refuses a teacher beside truncated sampling, and bounds top_k beside top_p. */
export function setTruncation(written: Table, own: Own): void {
  const sources = placesOf('orchestrator.train.source[]', written).map((_, i): KeyPath => ['env', i, 'sampling']);
  for (const ours of [['sampling'], ...sources]) {
    const said = (key: string): unknown => own.get([...ours, key]);
    const from = own.writtenAt([...ours, 'top_p']) ?? own.writtenAt([...ours, 'top_k']);
    const [topP, topK] = [said('top_p'), said('top_k')];
    const isTruncated = (typeof topP === 'number' && topP < 1) || (typeof topK === 'number' && topK > 0);
    if (!isTruncated || from === undefined) continue;
    const isTaught = own.get(['loss']) === 'opd' || sources.some((_, i) => own.get(['env', i, 'loss']) === 'opd');
    if (isTaught) {
      own.refuse({
        paths: [from],
        expected:
          'nothing that leaves tokens out beside opd or opsd: the teacher’s log probabilities are of all tokens. prime-rl refuses it as well',
        received: String(valueAt(written, from) ?? topP),
      });
      return;
    }
    const isBounded = topK !== undefined || found(written, 'orchestrator.train.sampling.top_k') !== undefined;
    if (isBounded || !(typeof topP === 'number' && topP < 1)) continue;
    own.set([...ours, 'top_k'], topKBesideTopP, from);
    own.warn(
      `${formatPath([...from.slice(0, -1), 'top_k'])} is not written beside top_p: ${topKBesideTopP}, as prime-rl sets it.`,
    );
  }
}

import { Fragment } from 'preact';
import { useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { TokensAnswer, TurnTokens } from '../answers.ts';
import { figure } from './figures.ts';
import { useAnswer } from './hooks.ts';
import type { Source } from './source.ts';

const colorings = [
  { name: 'logprob', title: 'how unlikely it was' },
  { name: 'advantage', title: 'advantage' },
  { name: 'entropy', title: 'entropy' },
  { name: 'trainer', title: '|trainer − sampler|' },
  { name: 'cut', title: '|policy − what was drawn from|' },
  { name: 'mask', title: 'counts in the loss' },
  { name: 'version', title: 'weight version' },
] as const;
type Coloring = (typeof colorings)[number]['name'];

const shades = 9;
/** Nats at which the shade is darkest, for unlikelihood, uncertainty and mismatch. */
const darkestNats = 5;
const darkestEntropy = 3;
const darkestApart = 1;
/** The trainer's weights equal the sampler's, or are a little newer, so their values are close. */
const darkestMismatch = 0.5;

/** The sampled tokens, coloured by one value known of each. */
export function Tokens({
  source,
  run,
  place,
  index,
}: {
  readonly source: Source;
  readonly run: string;
  readonly place: { readonly step: number; readonly group: number };
  readonly index: number;
}): JSX.Element {
  const [by, setBy] = useState<Coloring>('logprob');
  const [told, setTold] = useState<string | null>(null);
  const path = `/api/runs/${encodeURIComponent(run)}/tokens?step=${place.step}&group=${place.group}&index=${index}`;
  const { answer, error } = useAnswer<TokensAnswer>(source, path);
  if (error !== null) return <p class="trouble">{error}</p>;
  if (!answer) return <p role="status">reading …</p>;
  const first = Math.min(...answer.turns.map(({ version }) => version));
  return (
    <div class="tokens">
      <label>
        coloured by{' '}
        <select value={by} onChange={({ currentTarget }) => setBy(currentTarget.value as Coloring)}>
          {colorings.map(({ name, title }) => (
            <option key={name} value={name}>
              {title}
            </option>
          ))}
        </select>
      </label>
      <p class="note">{meaningOf(by, answer)}</p>
      {answer.turns.map((turn, t) => (
        <Fragment key={t}>
          {turn.agent !== undefined && <p class="role">{turn.agent}</p>}
          <pre class="said token-text" onMouseLeave={() => setTold(null)}>
            {turn.pieces.map((piece, i) => (
              <span key={i} class={classOf(by, turn, i, first)} onMouseEnter={() => setTold(inWords(turn, i))}>
                {piece}
              </span>
            ))}
          </pre>
        </Fragment>
      ))}
      <p class="told" aria-live="polite">
        {told ?? 'Point at a token.'}
      </p>
    </div>
  );
}

function classOf(by: Coloring, turn: TurnTokens, i: number, first: number): string {
  const shade = (share: number): number => Math.round(Math.min(1, Math.max(0, share)) * shades);
  switch (by) {
    case 'logprob':
      return `hot-${shade(-(turn.logprobs?.[i] ?? 0) / darkestNats)}`;
    case 'entropy':
      return shadeOf(turn.trained?.entropies[i], darkestEntropy, shade);
    case 'trainer':
      return shadeOf(mismatch(turn, i), darkestMismatch, shade);
    case 'cut':
      return `hot-${shade(apart(turn, i) / darkestApart)}`;
    case 'advantage': {
      const { advantage } = turn;
      if (advantage === null || turn.mask[i] !== 1) return '';
      return `${advantage < 0 ? 'hot' : 'cool'}-${shade(Math.abs(advantage) / 2)}`;
    }
    case 'mask':
      return turn.mask[i] === 1 ? 'cool-4' : 'faded';
    case 'version':
      return `version-${(turn.version - first) % 4}`;
    default:
      return by satisfies never;
  }
}

/** A token without a value has no colour. */
function shadeOf(value: number | null | undefined, darkest: number, shade: (share: number) => number): string {
  return value === null || value === undefined ? 'faded' : `hot-${shade(value / darkest)}`;
}

/** Absolute difference of the trainer's and the server's log probability under the same policy, in nats. */
function mismatch({ trained, logprobs }: TurnTokens, i: number): number | null {
  const [trainer, sampler] = [trained?.logprobs[i], logprobs?.[i]];
  return trainer === null || trainer === undefined || sampler === undefined ? null : Math.abs(trainer - sampler);
}

function apart({ logprobs, samplingLogprobs }: TurnTokens, i: number): number {
  return logprobs && samplingLogprobs ? Math.abs(logprobs[i]! - samplingLogprobs[i]!) : 0;
}

function meaningOf(by: Coloring, { turns, unmaskedBecause }: TokensAnswer): string {
  switch (by) {
    case 'logprob':
      return turns.some(({ logprobs }) => logprobs)
        ? `The darker, the less likely the policy thought it; ${darkestNats} nats are the darkest.`
        : 'The server did not tell log probabilities.';
    case 'entropy':
      return turns.some(({ trained }) => trained?.entropies.some((value) => value !== null))
        ? `How uncertain the policy was there, as the trainer computed it; ${darkestEntropy} nats are the darkest. Faded tokens were not trained.`
        : notKept;
    case 'trainer':
      return turns.some(({ trained }) => trained !== null)
        ? `How far the trainer’s log probability is from the sampler’s; ${darkestMismatch} nats are the darkest. Faded tokens were not trained.`
        : notKept;
    case 'cut':
      return turns.some(({ samplingLogprobs }) => samplingLogprobs)
        ? 'How far the distribution that was drawn from is from the policy’s own, in nats.'
        : 'It was drawn from the policy’s own distribution: nothing lies between them.';
    case 'advantage': {
      const known = new Set(turns.flatMap(({ advantage }) => advantage ?? []));
      if (known.size === 0) return 'It has no advantage that is known here.';
      const [one] = known.size === 1 ? known : [];
      const what = one === undefined ? 'Each agent’s own' : figure(one);
      return `${what} for every token that counts${unmaskedBecause === null ? '' : `; none does: ${unmaskedBecause}`}.`;
    }
    case 'mask':
      return unmaskedBecause === null ? 'Faded tokens do not count.' : `None counts: ${unmaskedBecause}.`;
    case 'version':
      return turns.some(({ version, versionEnd }) => versionEnd > version)
        ? 'A turn has the color of the version that it began with; some ended with a later one.'
        : 'A turn has the color of its version.';
    default:
      return by satisfies never;
  }
}

const notKept =
  'Not known: it was not trained, its trainer does not tell, or it is not kept (token_scores in the run file).';

function inWords(turn: TurnTokens, i: number): string {
  const logprob = turn.logprobs?.[i];
  const parts = [
    JSON.stringify(turn.pieces[i]),
    ...(logprob === undefined ? [] : [`log probability ${figure(logprob)} (${figure(Math.exp(logprob) * 100, 1)} %)`]),
    ...(turn.samplingLogprobs ? [`sampler ${figure(turn.samplingLogprobs[i])}`] : []),
    ...trainedWords(turn, i),
    turn.mask[i] === 1
      ? `counts${turn.advantage === null ? '' : `, advantage ${figure(turn.advantage)}`}`
      : 'does not count',
    `v${turn.version}${turn.versionEnd > turn.version ? `–${turn.versionEnd}` : ''}`,
  ];
  return parts.join(' · ');
}

function trainedWords(turn: TurnTokens, i: number): string[] {
  const [logprob, entropy, apart] = [turn.trained?.logprobs[i], turn.trained?.entropies[i], mismatch(turn, i)];
  return [
    ...(typeof logprob === 'number'
      ? [`trainer ${figure(logprob)}${apart === null ? '' : `, ${figure(apart)} apart`}`]
      : []),
    ...(typeof entropy === 'number' ? [`entropy ${figure(entropy)}`] : []),
  ];
}

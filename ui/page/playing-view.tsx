import type { JSX } from 'preact';
import { describeEffects } from '../../core/rl/rollout/effects.ts';
import type { ListedRollout, ListedRollouts, RolloutProgress, TurnFrom, TurnProgress } from '../answers.ts';
import type { ViewProps } from './app.tsx';
import { clock, counted, duration, figure } from './figures.ts';
import { addressOf, useAnswer, useTick } from './hooks.ts';
import { Scrolls } from './scrolls.tsx';

/** Workers say every few seconds how far their rollouts are. */
const askedAgainMs = 3_000;

/** Rollouts that are played now, and the chosen one turn by turn. The address holds which. */
export function PlayingView({ source, run, asked }: ViewProps): JSX.Element {
  const tick = useTick(askedAgainMs);
  const environment = asked.get('environment') ?? '';
  const chosen = { group: asked.get('group') ?? '', index: asked.get('index') ?? '' };
  const path = `/api/runs/${encodeURIComponent(run)}`;
  const list = useAnswer<ListedRollouts>(
    source,
    `${path}/playing?${new URLSearchParams({ environment }).toString()}`,
    tick,
  );
  const one = useAnswer<RolloutProgress>(
    source,
    chosen.group === '' ? null : `${path}/playing-one?group=${chosen.group}&index=${chosen.index}`,
    tick,
  );
  const addressFor = (more: Readonly<Record<string, string>>): string =>
    addressOf(run, 'playing', { environment, ...chosen, ...more });
  return (
    <>
      <section aria-labelledby="playing">
        <div class="bar">
          <h2 id="playing">In play</h2>
          {list.answer && Object.keys(list.answer.byEnvironment).length > 1 && (
            <label>
              environment{' '}
              <select
                value={environment}
                onChange={({ currentTarget }) => (location.hash = addressFor({ environment: currentTarget.value }))}
              >
                <option value="">any</option>
                {Object.entries(list.answer.byEnvironment).map(([name, count]) => (
                  <option key={name} value={name}>
                    {name} ({count})
                  </option>
                ))}
              </select>
            </label>
          )}
        </div>
        <Trouble error={list.error} />
        {list.answer === null && list.error === null && <p role="status">looking …</p>}
        {list.answer && <List list={list.answer} chosen={chosen} addressFor={addressFor} />}
      </section>
      {chosen.group !== '' && (
        <section aria-labelledby="one-rollout">
          <div class="bar">
            <h2 id="one-rollout">
              Rollout {chosen.group}/{chosen.index}
            </h2>
            <a href={addressFor({ group: '', index: '' })}>close</a>
          </div>
          <Trouble error={one.error} />
          {one.answer && <One progress={one.answer} />}
        </section>
      )}
    </>
  );
}

function Trouble({ error }: { readonly error: string | null }): JSX.Element | null {
  if (error === null) return null;
  return (
    <p class="trouble" role="alert">
      {error}
    </p>
  );
}

interface ListProps {
  readonly list: ListedRollouts;
  readonly chosen: { readonly group: string; readonly index: string };
  readonly addressFor: (more: Readonly<Record<string, string>>) => string;
}

function List({ list, chosen, addressFor }: ListProps): JSX.Element {
  const { rollouts, matches, inPlay, silent, left, ended, waiting, workers, turns, tokens, sandboxes } = list;
  if (inPlay + left === 0) return <p>No rollout is in play. A worker says which are after some seconds.</p>;
  const now = Date.now();
  return (
    <>
      <p class="note" role="status">
        {counted(inPlay, 'rollout')} on {counted(workers, 'worker')}; {ended} ended, {waiting} not begun;{' '}
        {counted(turns, 'turn')}, {counted(tokens, 'sampled token')}
        {sandboxes > 0 && `, ${counted(sandboxes, 'sandbox', 'sandboxes')}`}
        {silent > 0 && `; ${silent} of them on a worker that is overdue: it hangs, or has ended`}
        {left > 0 && `; ${left} left by a worker that has ended: the next attempt goes on with them`}
        {matches > rollouts.length && `. Shown are the ${rollouts.length} that have been in play for the longest.`}
      </p>
      <Scrolls label="rollouts in play">
        <table>
          <thead>
            <tr>
              {[
                'rollout',
                'example',
                'version',
                'for',
                'last turn',
                'turns',
                'from the store',
                'tokens',
                'tool calls',
                'effects',
                'sandbox',
                'worker',
                'heard',
              ].map((title) => (
                <th scope="col" key={title}>
                  {title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rollouts.map((one) => (
              <Row key={`${one.group}/${one.index}`} one={one} now={now} chosen={chosen} addressFor={addressFor} />
            ))}
          </tbody>
        </table>
      </Scrolls>
    </>
  );
}

function Row({
  one,
  now,
  chosen,
  addressFor,
}: { readonly one: ListedRollout; readonly now: number } & Omit<ListProps, 'list'>): JSX.Element {
  const place = { group: String(one.group), index: String(one.index) };
  const isChosen = place.group === chosen.group && place.index === chosen.index;
  return (
    <tr aria-current={isChosen ? 'true' : undefined}>
      <th scope="row">
        <a href={addressFor(place)}>
          {place.group}/{place.index}
        </a>
      </th>
      <td>
        {one.environment} {one.exampleId}
      </td>
      <td>{versions(one)}</td>
      <td class="number">{duration(since(now, one.begunAtMs))}</td>
      <td class="number">{one.lastTurnAtMs === undefined ? '–' : `${duration(since(now, one.lastTurnAtMs))} ago`}</td>
      <td class="number">{one.turns}</td>
      <td class="number">{one.fromStore}</td>
      <td class="number">
        {one.promptTokens} + {one.tokens}
      </td>
      <td class="number">{one.toolCalls}</td>
      <td>{one.effects ? describeEffects(one.effects).replaceAll('in doubt', 'open') : '–'}</td>
      <td>{one.sandbox ? <span title={one.sandbox.name}>{one.sandbox.provider}</span> : '–'}</td>
      <td>
        {one.worker}
        {(one.attempt > 1 || one.tries > 1) && `, attempt ${one.attempt}.${one.tries}`}
      </td>
      <td class="number">
        {duration(since(now, one.writtenAtMs))} ago{standings[one.standing]}
      </td>
    </tr>
  );
}

function One({ progress }: { readonly progress: RolloutProgress }): JSX.Element {
  const { played, result, sandbox, budget, effects, effectCounts, setAside, turns, turnsOf } = progress;
  const now = Date.now();
  return (
    <>
      <dl class="facts">
        <Fact name="state">
          {played
            ? played.standing === 'left'
              ? 'left: its worker has ended, and the next attempt goes on with it'
              : `in play for ${duration(since(now, played.begunAtMs))}`
            : `${result!.outcome.replaceAll('_', ' ')}${result!.reward === null ? '' : `, reward ${figure(result!.reward)}`}`}
        </Fact>
        <Fact name="example">
          {progress.environment} {progress.exampleId}
        </Fact>
        <Fact name="leased for">
          step {progress.step} of {progress.lineage}, {versions(progress)}
        </Fact>
        {played && (
          <Fact name="worker">
            {played.worker}, attempt {played.attempt}, try {played.tries}, heard of{' '}
            {duration(since(now, played.writtenAtMs))} ago{standings[played.standing]}
          </Fact>
        )}
        {sandbox && (
          <Fact name="sandbox">
            {sandbox.provider} {sandbox.name},{' '}
            {duration(sandbox.seconds ?? (sandbox.sinceMs === null ? null : since(now, sandbox.sinceMs)))}
            {sandbox.deadlineAtMs !== null && `, ends at ${clock(sandbox.deadlineAtMs)}`}
          </Fact>
        )}
        {budget && (
          <Fact name="budget used">
            {Object.entries(budget.used)
              .filter(([unit, used]) => used > 0 || unit in budget.limits)
              .map(
                ([unit, used]) =>
                  `${unitNames[unit] ?? unit} ${figure(used)}${limitText(budget.limits[unit as 'tokens'])}`,
              )
              .join('; ') || 'nothing'}
          </Fact>
        )}
        {effects.length === 0 && effectCounts && <Fact name="effects">{describeEffects(effectCounts)}</Fact>}
        {setAside && <Fact name="set aside">{counted(setAside.turns, 'turn')} of an earlier attempt</Fact>}
      </dl>
      {result?.error != null && <p class="trouble">{result.error}</p>}
      {effects.length > 0 && (
        <ul>
          {effects.map(({ kind, name, outcome }, i) => (
            <li key={i}>
              <b>{outcome}</b>: <bdi>{name}</bdi> ({kind})
            </li>
          ))}
        </ul>
      )}
      {turns.length === 0 ? <p>{noTurns(turnsOf)}</p> : <Turns turns={turns} of={turnsOf} />}
    </>
  );
}

const standings: Readonly<Record<ListedRollout['standing'], string>> = {
  'in play': '',
  silent: ', overdue',
  left: ', has ended',
};

function noTurns(of: number): string {
  if (of === 0) return 'No turn has finished yet.';
  return `${counted(of, 'turn')} finished. Its environment begins anew after a death, so they are stored when it ends.`;
}

const froms: Readonly<Record<TurnFrom, string>> = {
  sampled: 'sampled',
  store: 'the store',
  snapshot: 'before the snapshot',
  earlier: 'earlier, not asked for again',
};

function Turns({ turns, of }: { readonly turns: readonly TurnProgress[]; readonly of: number }): JSX.Element {
  return (
    <>
      {of > turns.length && (
        <p class="note">
          The newest {turns.length} of {of} turns.
        </p>
      )}
      <Scrolls label="turns">
        <table>
          <thead>
            <tr>
              {['turn', 'call', 'from', 'prompt', 'sampled', 'seconds', 'version', 'tool calls'].map((title) => (
                <th scope="col" key={title}>
                  {title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {turns.map((turn) => (
              <tr key={`${turn.number} ${turn.call?.id}`}>
                <th scope="row">{turn.number}</th>
                <td>
                  {turn.call ? (
                    <span title={turn.call.after === null ? 'begins a conversation' : `continues ${turn.call.after}`}>
                      {turn.call.id.slice(0, 6)}
                      {turn.call.id.slice(turn.call.id.lastIndexOf('-'))}
                    </span>
                  ) : (
                    '–'
                  )}
                </td>
                <td>{froms[turn.from]}</td>
                <td class="number">{turn.promptTokens}</td>
                <td class="number">
                  {turn.tokens}
                  {turn.isCut && ' (cut)'}
                </td>
                <td class="number">{turn.seconds === null ? '–' : figure(turn.seconds)}</td>
                <td>v{turn.version}</td>
                <td>
                  {turn.tools.map(({ name, arguments: given }, i) => (
                    <div key={i}>
                      <bdi>
                        <b>{name}</b> <small>{given}</small>
                      </bdi>
                    </div>
                  ))}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scrolls>
    </>
  );
}

function Fact({ name, children }: { readonly name: string; readonly children: preact.ComponentChildren }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

const unitNames: Readonly<Record<string, string>> = {
  tokens: 'tokens',
  money: 'money',
  sandboxS: 'sandbox seconds',
  toolCalls: 'tool calls',
};

function limitText(limit: number | undefined): string {
  return limit === undefined ? '' : ` of ${figure(limit)}`;
}

function versions({ version, versionEnd }: { readonly version: number; readonly versionEnd: number }): string {
  return versionEnd > version ? `v${version}–v${versionEnd}` : `v${version}`;
}

function since(now: number, atMs: number): number {
  return Math.max(0, (now - atMs) / 1000);
}

import type { JSX } from 'preact';
import type { FoundPool } from '../../core/fleet/pool-types.ts';
import type { FleetAnswer, ListedRun } from '../answers.ts';
import { clock, counted, figure } from './figures.ts';
import { addressOf, useAnswer, useTick } from './hooks.ts';
import { Scrolls } from './scrolls.tsx';
import type { Source } from './source.ts';

type TellingPool = Exclude<FoundPool, { readonly trouble: string }>;

/** A pool is asked over Temporal, with all its machines. */
const askedAgainMs = 4_000;

/** The pools of the Temporal server: machines and what they do, who waits for what, and the shares of teams. */
export function FleetView({ source }: { readonly source: Source }): JSX.Element {
  const tick = useTick(askedAgainMs);
  const { answer, error } = useAnswer<FleetAnswer>(source, '/api/fleet', tick);
  const listed = useAnswer<readonly ListedRun[]>(source, '/api/runs');
  const here = new Set(listed.answer?.map(({ run }) => run));
  const pools = answer?.pools;
  return (
    <>
      {error !== null && (
        <p class="trouble" role="alert">
          {error}
        </p>
      )}
      {answer === null && error === null && <p role="status">asking …</p>}
      {pools === 'no answer' && (
        <p class="trouble" role="alert">
          The Temporal server does not answer.
        </p>
      )}
      {pools === null && answer !== null && <p>There is no Temporal server here, and so no pool.</p>}
      {Array.isArray(pools) && pools.length === 0 && (
        <p>
          There is no pool. It begins with the first worker that joins it:{' '}
          <code>npx ratchet-rl worker --role train --pool NAME</code>.
        </p>
      )}
      {Array.isArray(pools) && pools.map((pool: FoundPool) => <Pool key={pool.pool} found={pool} here={here} />)}
    </>
  );
}

function Pool({ found, here }: { readonly found: FoundPool; readonly here: ReadonlySet<string> }): JSX.Element {
  const id = `pool-${found.pool}`;
  return (
    <section class="pool" aria-labelledby={id}>
      <h2 id={id}>{found.pool}</h2>
      {'trouble' in found ? (
        <p class="trouble">No orchestrator answers for it: {found.trouble}</p>
      ) : (
        <>
          <p class="note">{summary(found)}</p>
          <Queue pool={found} here={here} />
          <Played pool={found} />
          <Machines pool={found} here={here} />
          <Teams pool={found} />
        </>
      )}
    </section>
  );
}

function summary({ trainers, workers, waiting, settings, gone }: TellingPool): string {
  const held = trainers.filter(({ run }) => run !== null).length;
  const { slice, aging } = settings;
  return [
    `${counted(trainers.length, 'trainer')}, ${held} held${gone.length === 0 ? '' : `, ${gone.length} gone`}`,
    counted(workers.length, 'rollout worker'),
    waiting.length === 0 ? 'nobody waits' : `${counted(waiting.length, 'run')} in the queue`,
    `turns of ${slice} s`,
    aging === 0 ? 'waiting raises no priority' : `${aging} s of waiting raise a priority by 1`,
  ].join('; ');
}

function Run({ run, here }: { readonly run: string; readonly here: ReadonlySet<string> }): JSX.Element {
  return here.has(run) ? <a href={addressOf(run)}>{run}</a> : <>{run}</>;
}

function Queue({ pool, here }: { readonly pool: TellingPool; readonly here: ReadonlySet<string> }): JSX.Element | null {
  if (pool.waiting.length === 0) return null;
  return (
    <>
      <h3>Queue</h3>
      <Scrolls label={`queue of ${pool.pool}`}>
        <table>
          <thead>
            <tr>
              <th scope="col">place</th>
              <th scope="col">run</th>
              <th scope="col">team</th>
              <th scope="col">priority</th>
              <th scope="col">since</th>
              <th scope="col">waits for</th>
            </tr>
          </thead>
          <tbody>
            {pool.waiting.map(({ run, team, priority, since, why }, i) => (
              <tr key={run}>
                <td class="number">{i + 1}</td>
                <th scope="row">
                  <Run run={run} here={here} />
                </th>
                <td>{team}</td>
                <td class="number">{priority}</td>
                <td>{clock(since)}</td>
                <td class="why">{why}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scrolls>
    </>
  );
}

function Played({ pool }: { readonly pool: TellingPool }): JSX.Element | null {
  if (pool.played.length === 0) return null;
  return (
    <>
      <h3>Evaluations and searches</h3>
      <Scrolls label={`evaluations and searches of ${pool.pool}`}>
        <table>
          <thead>
            <tr>
              <th scope="col">workflow</th>
              <th scope="col">is</th>
              <th scope="col">since</th>
              <th scope="col">waits for</th>
            </tr>
          </thead>
          <tbody>
            {pool.played.map(({ workflow, kind, since, waitsFor }) => (
              <tr key={workflow}>
                <th scope="row">{workflow}</th>
                <td>{kind}</td>
                <td>{clock(since)}</td>
                <td class="why">{waitsFor ?? 'nothing: it plays'}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scrolls>
    </>
  );
}

function Machines({ pool, here }: { readonly pool: TellingPool; readonly here: ReadonlySet<string> }): JSX.Element {
  const { trainers, workers, gone } = pool;
  return (
    <>
      <h3>Machines</h3>
      <Scrolls label={`machines of ${pool.pool}`}>
        <table>
          <thead>
            <tr>
              <th scope="col">machine</th>
              <th scope="col">is</th>
              <th scope="col">labels</th>
              <th scope="col">does</th>
              <th scope="col">since</th>
              <th scope="col">next</th>
            </tr>
          </thead>
          <tbody>
            {trainers.map(({ trainer, labels, run, since, giveBack }) => (
              <tr key={trainer}>
                <th scope="row">{trainer}</th>
                <td>trainer</td>
                <td>{labelsText(labels)}</td>
                <td>{run === null ? gone.includes(trainer) ? 'gone' : 'free' : <Run run={run} here={here} />}</td>
                <td>{clock(since)}</td>
                <td class={giveBack === null ? undefined : 'why'}>
                  {giveBack === null ? '' : `asked for: ${giveBack.why}`}
                </td>
              </tr>
            ))}
            {workers.map(({ worker, plays }) => (
              <tr key={worker}>
                <th scope="row">{worker}</th>
                <td>rollout worker</td>
                <td />
                <td>{plays.length === 0 ? 'waits for work' : `plays for ${plays.join(', ')}`}</td>
                <td>–</td>
                <td />
              </tr>
            ))}
          </tbody>
        </table>
      </Scrolls>
    </>
  );
}

function labelsText(labels: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}=${value}`);
  return pairs.join(' ');
}

function Teams({ pool }: { readonly pool: TellingPool }): JSX.Element | null {
  if (pool.teams.length === 0) return null;
  return (
    <>
      <h3>Teams</h3>
      <Scrolls label={`teams of ${pool.pool}`}>
        <table class="narrow">
          <thead>
            <tr>
              <th scope="col">team</th>
              <th scope="col">holds</th>
              <th scope="col">quota</th>
              <th scope="col">waits</th>
              <th scope="col">weight</th>
              <th scope="col">of the time held</th>
            </tr>
          </thead>
          <tbody>
            {pool.teams.map(({ team, holds, quota, waits, weight, share }) => (
              <tr key={team}>
                <th scope="row">{team}</th>
                <td class="number">{holds}</td>
                <td class="number">{quota ?? 'none'}</td>
                <td class="number">{waits}</td>
                <td class="number">{weight}</td>
                <td class="number">
                  {share === null ? '–' : `${figure(share * 100, 0)} %`}
                  {share !== null && <meter value={share} aria-label={`share of ${team}`} />}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scrolls>
    </>
  );
}

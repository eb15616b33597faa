/** The tables of docs/guide/adapters.md: what is known of each kind of trainer, inference and environment, by their traits. */
import { environments } from '../../core/kinds/environments.ts';
import { inferences } from '../../core/kinds/inference.ts';
import { trainers } from '../../core/kinds/trainers.ts';

type Column = readonly [title: string, cell: (traits: never) => string];

export function kindTables(): string {
  return [
    'Trainers, `[trainer] kind`:',
    '',
    ...table(trainers, [
      ['it is', (one: Trainer) => one.is],
      ['computes in', ({ process }: Trainer) => places[process]],
      ['trains', ({ trains }: Trainer) => trains],
      ['temperatures of a batch', ({ oneTemperature }: Trainer) => (oneTemperature === null ? 'several' : 'one')],
      ['several losses in a batch', ({ severalLosses }: Trainer) => yes(severalLosses)],
      ['pairs (`dpo`)', ({ pairs }: Trainer) => yes(pairs)],
      ['run file needs', ({ needs }: Trainer) => needs],
      ['to install', ({ install }: Trainer) => install],
    ]),
    '',
    'Inference, `[inference] kind`:',
    '',
    ...table(inferences, [
      ['it is', (one: Inference) => one.is],
      ['started with the run', ({ starts }: Inference) => starts ?? 'no'],
      ['scores what others wrote', ({ scoresPrompts }: Inference) => yes(scoresPrompts)],
      ['new weights within a turn', ({ changesInTurn }: Inference) => yes(changesInTurn)],
      ['to install', ({ install }: Inference) => install],
    ]),
    '',
    'Environments, by what their `id` stands for:',
    '',
    ...table(environments, [
      ['it is', (one: Environment) => one.is],
      ['plays in', ({ process }: Environment) => places[process].replace('GPU', 'rollout')],
      ['demonstrates', ({ demonstrates }: Environment) => yes(demonstrates)],
      ['to install', ({ install }: Environment) => install],
    ]),
    '',
  ].join('\n');
}

type Trainer = (typeof trainers)[keyof typeof trainers];
type Inference = (typeof inferences)[keyof typeof inferences];
type Environment = (typeof environments)[keyof typeof environments];

const places = {
  worker: 'the GPU worker',
  child: 'a process that the GPU worker starts',
  outside: 'a server that runs already',
};

function table(kinds: Readonly<Record<string, object>>, columns: readonly Column[]): string[] {
  const rows = Object.entries(kinds).map(([kind, traits]) => [
    `\`${kind}\``,
    ...columns.map(([, cell]) => cell(traits as never)),
  ]);
  const head = ['kind', ...columns.map(([title]) => title)];
  return [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`);
}

function yes(is: boolean): string {
  return is ? 'yes' : 'no';
}

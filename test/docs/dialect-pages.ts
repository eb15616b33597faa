/** docs/guide/dialects.md and a page for each dialect: what is taken, what is ignored and why, what is refused. */
import type { Dialect, Field } from '../../config/dialects/dialect.ts';
import { dialects } from '../../config/dialects/index.ts';
import { honouredByTorch, insteadOfTorch } from '../../config/settings/torch.ts';
import { becomesOf, defaultOf, escaped, isOtherPlace } from './dialect-tables.ts';
import type { MadeDocument } from './documents.ts';

type Row = readonly [path: string, field: Field];

const shown = dialects.filter(({ schema }) => schema === undefined);
const fileOf = (dialect: Dialect): string => `dialects/${dialect.name}.md`;

/** Among several dialects with one table of fields, the first has the page. */
const pageOf = (dialect: Dialect): Dialect => shown.find(({ fields }) => fields === dialect.fields)!;

/** How many fields there are of each fate, with links to them. */
export function dialectIndex(): string {
  const rows = shown.map((dialect) => {
    const page = pageOf(dialect);
    const { taken, ignored, refused } = fieldsByFate(page);
    const count = (fields: readonly Row[], anchor: string): string =>
      fields.length === 0 ? '0' : `[${fields.length}](${fileOf(page)}#${anchor})`;
    const counts = [count(taken, 'taken'), count(ignored, 'ignored'), count(refused, 'refused')];
    return `| [\`${dialect.name}\`](${fileOf(page)}) | ${dialect.title} | ${counts.join(' | ')} |`;
  });
  const index = ['| dialect | of | taken | ignored | refused |', '| --- | --- | --: | --: | --: |', ...rows];
  return [...index, '', ...torchTable()].join('\n');
}

/** The settings that take effect where PyTorch trains, by the names that other systems have for them. */
function torchTable(): string[] {
  const alone = [
    ...Object.keys(honouredByTorch).map((key) => `trainer.${key}`),
    'trainer.load_in_4bit',
    'lora.modules_to_save',
  ];
  const both = ['trainer.ac_freq', 'trainer.max_grad_norm', 'trainer.optimizer', 'trainer.micro_batch_size'];
  both.push(...['r', 'alpha', 'dropout', 'target_modules'].map((key) => `lora.${key}`));
  const systems = ['hosted', 'prime-rl', 'prime-rl-0.4', 'prime-rl-sft', 'vf-rl', 'grpo'].map((name) =>
    dialects.find((dialect) => dialect.name === name)!,
  );
  const does: Readonly<Record<string, string>> = Object.fromEntries(
    Object.entries(insteadOfTorch).map(([key, { does }]) => [`trainer.${key}`, does]),
  );
  const rows = [...alone, ...both].map((setting) => {
    const names = systems.map(({ fields }) => nameOf(fields, setting));
    const elsewhere = both.includes(setting) ? 'the same' : (does[setting] ?? 'refused');
    const cells = [setting, ...names].map((name) => (name === undefined ? '–' : `\`${name}\``));
    return `| ${[...cells, elsewhere].join(' | ')} |`;
  });
  return [
    '## What takes effect where PyTorch trains',
    '',
    `With \`[trainer] kind = "torch"\` each of these does what it says. The last column says what becomes of it on the embedded engine.`,
    '',
    `| ours | ${systems.map(({ name }) => `\`${name}\``).join(' | ')} | embedded engine |`,
    `| --- |${' --- |'.repeat(systems.length + 1)}`,
    ...rows,
  ];
}

function nameOf(fields: Dialect['fields'], setting: string): string | undefined {
  return Object.entries(fields).find(([, field]) => isOf(field, setting))?.[0];
}

function isOf({ fate }: Field, setting: string): boolean {
  if (fate.kind === 'becomes') return fate.path === setting;
  return fate.kind === 'together' && fate.what.startsWith(`\`${setting}\``);
}

export const dialectPages: readonly MadeDocument[] = shown
  .filter((dialect) => pageOf(dialect) === dialect)
  .map((dialect) => ({ file: fileOf(dialect), body: () => page(dialect) }));

function page(dialect: Dialect): string {
  const { taken, ignored, refused } = fieldsByFate(dialect);
  const sections = [
    ['Ignored', ignored, ignoredTable(ignored, dialect)],
    ['Refused', refused, refusedTable(refused)],
    ['Taken', taken, takenTables(taken, dialect)],
  ] as const;
  const there = sections.filter(([, fields]) => fields.length > 0);
  const older = dialect.renames ?? [];
  return [
    `# \`${dialect.name}\`: ${dialect.title}`,
    '',
    `What its fields mean here: ${there.map(([title, { length }]) => `[${title.toLowerCase()}](#${title.toLowerCase()}): ${length}`).join(', ')}. ` +
      'Another field is an error. `npm run docs` writes docs/made/dialects.md, which also says what each field takes. ' +
      '[Run files of other systems](../dialects.md) says how a file is read.',
    '',
    ...there.flatMap(([title, , table]) => [`## ${title}`, '', ...table, '']),
    ...(older.length === 0
      ? []
      : [
          '## Older names',
          '',
          '| was | is | since |',
          '| --- | --- | --- |',
          ...older.map(({ was, is, since }) => `| \`${was}\` | \`${is}\` | ${since} |`),
        ]),
  ].join('\n');
}

function fieldsByFate(dialect: Dialect): { taken: Row[]; ignored: Row[]; refused: Row[] } {
  const rows = Object.entries(dialect.fields).filter(([path]) => !isOtherPlace(path, dialect));
  const of = (...kinds: string[]): Row[] => rows.filter(([, { fate }]) => kinds.includes(fate.kind));
  return { taken: of('becomes', 'together', 'only'), ignored: of('ignored'), refused: of('refused') };
}

/** One row for each reason. `log.*` stands for a table of which every field is ignored for that reason. */
function ignoredTable(ignored: readonly Row[], dialect: Dialect): string[] {
  const why = ([, { fate }]: Row): string => (fate.kind === 'ignored' ? fate.why : '');
  const rows = [...grouped(ignored, why)].map(([reason, fields]) => {
    const names = short(fields, (path) => Object.keys(dialect.fields).filter((one) => one.startsWith(`${path}.`)));
    return `| ${names.map((name) => `\`${name}\``).join(', ')} | ${escaped(reason)} |`;
  });
  return ['Each has no effect, and a warning says so.', '', '| field | why |', '| --- | --- |', ...rows];
}

function short(fields: readonly Row[], within: (table: string) => readonly string[]): string[] {
  const paths = new Set(fields.map(([path]) => path));
  const names = [...paths].map((path) => {
    const parts = path.split('.');
    const tables = parts.slice(1).map((_, i) => parts.slice(0, i + 1).join('.'));
    const whole = tables.find((table) => within(table).length > 1 && within(table).every((one) => paths.has(one)));
    return whole === undefined ? path : `${whole}.*`;
  });
  return [...new Set(names)];
}

function refusedTable(refused: readonly Row[]): string[] {
  const rows = [...grouped(refused, ([, field]) => becomesOf(field).replace(/^refused: /, ''))].map(
    ([instead, fields]) => `| ${fields.map(([path]) => `\`${path}\``).join(', ')} | ${escaped(instead)} |`,
  );
  return ['A file with one of them is not trained.', '', '| field | what to do |', '| --- | --- |', ...rows];
}

/** One table for each table of the file that has many fields. */
function takenTables(taken: readonly Row[], dialect: Dialect): string[] {
  const groups = grouped(taken, ([path]) => tableOf(path, taken));
  return [...groups].flatMap(([table, fields]) => [
    ...(groups.size > 1 ? [`### ${table === '' ? 'Top of the file, and small tables' : `\`${table}\``}`, ''] : []),
    '| field | default | becomes |',
    '| --- | --- | --- |',
    ...fields.map(([path, field]) => `| \`${path}\` | ${defaultOf(field, dialect)} | ${escaped(becomesOf(field))} |`),
    '',
  ]);
}

const manyFields = 6;

/** The longest beginning of a path, of at most two parts, that many fields share. */
function tableOf(path: string, taken: readonly Row[]): string {
  const parts = path.split('.').slice(0, -1);
  const beginnings = [parts.slice(0, 2).join('.'), parts.slice(0, 1).join('.')].filter((text) => text !== '');
  const sharing = (table: string): number => taken.filter(([one]) => one.startsWith(`${table}.`)).length;
  return beginnings.find((table) => sharing(table) >= manyFields) ?? '';
}

function grouped(fields: readonly Row[], keyOf: (row: Row) => string): Map<string, Row[]> {
  const groups = new Map<string, Row[]>();
  for (const row of fields) groups.set(keyOf(row), [...(groups.get(keyOf(row)) ?? []), row]);
  return groups;
}

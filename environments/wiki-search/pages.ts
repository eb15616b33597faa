import { oneOf, type World } from './world.ts';

/** The searchable collection: a page per thing, in sections. */

export interface Page {
  /** The name in small letters, with underscores. */
  readonly id: string;
  readonly title: string;
  readonly sections: readonly Section[];
}

interface Section {
  /** `page_id:name_of_section`. */
  readonly id: string;
  readonly name: string;
  readonly text: string;
}

export function makePages(world: World): Page[] {
  const { islands, towns, people, ships, books, bridges, festivals } = world;
  const list = (names: readonly string[], none: string) => (names.length === 0 ? none : names.join(', '));
  return [
    ...islands.map((island) =>
      page(island.name, {
        Geography: `${island.name} is one of the Lantern Isles. Its area is ${island.areaKm2} square kilometres. The highest point is ${island.hill}, ${island.hillM} metres above the sea.`,
        History: `People first settled on ${island.name} in the year ${island.settled}.`,
        Towns: `Towns on the island: ${list(
          towns.filter((town) => town.island === island).map(({ name }) => name),
          'none, only farms',
        )}.`,
      }),
    ),
    ...towns.map((town) =>
      page(town.name, {
        Overview: oneOf(town.name, [
          `${town.name} is a town on the island of ${town.island.name}. About ${town.people} people live there.`,
          `On ${town.island.name} lies the town of ${town.name}, home to about ${town.people} people.`,
        ]),
        History: oneOf(town.name, [
          `${town.name} was founded in ${town.founded}, at a place where boats could be drawn ashore.`,
          `The charter of ${town.name} dates from ${town.founded}, which counts as the year of its foundation.`,
        ]),
        Economy: `The town has long been known for its ${town.craft}. Its best-known dish is ${town.dish}.`,
        'People and sights': `Born here: ${list(
          people.filter(({ birthplace }) => birthplace === town).map(({ name }) => name),
          'nobody of note',
        )}. Bridges: ${list(
          bridges.filter((bridge) => bridge.town === town).map(({ name }) => name),
          'none',
        )}.`,
      }),
    ),
    ...people.map((person) =>
      page(person.name, {
        Life: oneOf(person.name, [
          `${person.name} was born in ${person.birthplace.name} in ${person.born} and died in ${person.died}.`,
          `Born in ${person.born} in the town of ${person.birthplace.name}, ${person.name} lived until ${person.died}.`,
        ]),
        Work: `${person.name} was a ${person.profession} by profession. Books: ${list(
          books.filter(({ author }) => author === person).map(({ name }) => name),
          'none',
        )}. Bridges: ${list(
          bridges.filter(({ builder }) => builder === person).map(({ name }) => name),
          'none',
        )}.`,
        'Private life': `Friends remembered how ${person.name.split(' ')[0]} played the ${person.instrument} in the evenings.`,
      }),
    ),
    ...ships.map((ship) =>
      page(ship.name, {
        Building: `The ship ${ship.name} was built in ${ship.yard.name} and launched in ${ship.launched}. It was ${ship.lengthM} metres long.`,
        Service: `Under captain ${ship.captain.name} it mostly carried ${ship.cargo} between the isles.`,
      }),
    ),
    ...books.map((book) =>
      page(book.name, {
        Publication: `${book.name} is a book by ${book.author.name}, first printed in ${book.year}. It has ${book.pages} pages.`,
        Contents: `The book is about ${book.subject}.`,
      }),
    ),
    ...bridges.map((bridge) =>
      page(bridge.name, {
        Construction: `${bridge.name} in ${bridge.town.name} was built by ${bridge.builder.name} and opened in ${bridge.opened}.`,
        Description: `It has ${bridge.arches} arches of ${bridge.stone}.`,
      }),
    ),
    ...festivals.map((festival) =>
      page(festival.name, {
        Celebration: `Each year in ${festival.month}, ${festival.town.name} celebrates ${festival.name}: people ${festival.custom}.`,
        Origin: `The custom goes back to ${festival.founder.name}.`,
      }),
    ),
  ];
}

function page(name: string, sections: Readonly<Record<string, string>>): Page {
  const title = name.charAt(0).toUpperCase() + name.slice(1);
  const id = slug(name);
  return {
    id,
    title,
    sections: Object.entries(sections).map(([section, text]) => ({
      id: `${id}:${slug(section)}`,
      name: section,
      text,
    })),
  };
}

export function slug(text: string): string {
  return text
    .toLowerCase()
    .replaceAll("'", '')
    .replaceAll(/[^a-z0-9]+/g, '_');
}

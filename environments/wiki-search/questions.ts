import { slug } from './pages.ts';
import type { World } from './world.ts';

export interface Question {
  readonly question: string;
  readonly answer: string;
  /** Sections that together hold the answer, in reading order. */
  readonly sections: readonly string[];
}

/** All questions: answered by one page, or by two when the first only names the second. */
export function makeQuestions(world: World): Question[] {
  return [...ofPlacesAndPeople(world), ...ofTheirWorks(world)];
}

function at(thing: { readonly name: string }, section: string): string {
  return `${slug(thing.name)}:${slug(section)}`;
}

function ask(question: string, answer: string | number, ...sections: readonly string[]): Question {
  return { question, answer: String(answer), sections };
}

function ofPlacesAndPeople({ islands, towns, people }: World): Question[] {
  return [
    ...islands.flatMap((island) => [
      ask(`How high is the highest point of ${island.name}, in metres?`, island.hillM, at(island, 'Geography')),
      ask(`In which year was ${island.name} first settled?`, island.settled, at(island, 'History')),
      ask(`What is the area of ${island.name} in square kilometres?`, island.areaKm2, at(island, 'Geography')),
    ]),
    ...towns.flatMap((town) => [
      ask(`In which year was ${town.name} founded?`, town.founded, at(town, 'History')),
      ask(`On which island is ${town.name}?`, town.island.name, at(town, 'Overview')),
      ask(`Which craft is ${town.name} known for?`, town.craft, at(town, 'Economy')),
      ask(`What is the best-known dish of ${town.name}?`, town.dish, at(town, 'Economy')),
      ask(
        `When was the island on which ${town.name} lies first settled?`,
        town.island.settled,
        at(town, 'Overview'),
        at(town.island, 'History'),
      ),
    ]),
    ...people.flatMap((person) => [
      ask(`In which year was ${person.name} born?`, person.born, at(person, 'Life')),
      ask(`In which town was ${person.name} born?`, person.birthplace.name, at(person, 'Life')),
      ask(`What was the profession of ${person.name}?`, person.profession, at(person, 'Work')),
      ask(`Which instrument did ${person.name} play?`, person.instrument, at(person, 'Private life')),
      ask(
        `In which year was the town founded in which ${person.name} was born?`,
        person.birthplace.founded,
        at(person, 'Life'),
        at(person.birthplace, 'History'),
      ),
    ]),
  ];
}

function ofTheirWorks({ ships, books, bridges, festivals }: World): Question[] {
  return [
    ...ships.flatMap((ship) => [
      ask(`Who was captain of ${ship.name}?`, ship.captain.name, at(ship, 'Service')),
      ask(`In which town was the ship ${ship.name} built?`, ship.yard.name, at(ship, 'Building')),
      ask(`What did the ship ${ship.name} mostly carry?`, ship.cargo, at(ship, 'Service')),
      ask(
        `In which town was the captain of ${ship.name} born?`,
        ship.captain.birthplace.name,
        at(ship, 'Service'),
        at(ship.captain, 'Life'),
      ),
      ask(
        `On which island was the ship ${ship.name} built?`,
        ship.yard.island.name,
        at(ship, 'Building'),
        at(ship.yard, 'Overview'),
      ),
    ]),
    ...books.flatMap((book) => [
      ask(`Who wrote "${book.name}"?`, book.author.name, at(book, 'Publication')),
      ask(`How many pages does "${book.name}" have?`, book.pages, at(book, 'Publication')),
      ask(
        `Which instrument did the author of "${book.name}" play?`,
        book.author.instrument,
        at(book, 'Publication'),
        at(book.author, 'Private life'),
      ),
      ask(
        `In which year did the author of "${book.name}" die?`,
        book.author.died,
        at(book, 'Publication'),
        at(book.author, 'Life'),
      ),
    ]),
    ...bridges.flatMap((bridge) => [
      ask(`Who built ${bridge.name}?`, bridge.builder.name, at(bridge, 'Construction')),
      ask(`How many arches does ${bridge.name} have?`, bridge.arches, at(bridge, 'Description')),
      ask(
        `In which year was the builder of ${bridge.name} born?`,
        bridge.builder.born,
        at(bridge, 'Construction'),
        at(bridge.builder, 'Life'),
      ),
    ]),
    ...festivals.flatMap((festival) => [
      ask(`In which month is ${festival.name} celebrated?`, festival.month, at(festival, 'Celebration')),
      ask(
        `What was the profession of the person to whom ${festival.name} goes back?`,
        festival.founder.profession,
        at(festival, 'Origin'),
        at(festival.founder, 'Work'),
      ),
    ]),
  ];
}
